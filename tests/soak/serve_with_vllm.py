"""Answer questions about images with vLLM, greedily. It runs in vLLM's own environment, and imports nothing of vtool.

    VLLM_PYTHON serve_with_vllm.py MODEL REQUESTS ANSWERS [--dtype bfloat16]

REQUESTS is a JSON file: {"max_tokens": 4, "requests": [{"image": "scan.png", "question": "Which digit is shown?"}, …]}.
ANSWERS gets, for each request in order: prompt_ids, as vLLM gave them to the model, placeholders of the image included; ids and
text of the answer; logprobs, for each token of the answer those of the whole vocabulary. Beside them, processor_ids and pixel_values:
what transformers' own `AutoProcessor` makes of the same request in this environment.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

# Nothing is fetched, and all is done in this process: to start another one takes longer than these answers.
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("requests", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    asked = json.loads(arguments.requests.read_text())
    answers = serve(arguments.model, asked["requests"], asked["max_tokens"], arguments.dtype)
    for answer, processed in zip(answers, process(arguments.model, asked["requests"]), strict=True):
        answer.update(processed)
    arguments.answers.write_text(json.dumps(answers))


def serve(model: Path, requests: list[dict[str, str]], max_tokens: int, dtype: str) -> list[dict[str, Any]]:
    from vllm import LLM, SamplingParams

    server = LLM(
        model=str(model),
        dtype=dtype,
        seed=0,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=16,
        max_logprobs=-1,
        limit_mm_per_prompt={"image": 1, "video": 0},
    )
    chats = [[{"role": "user", "content": [_image(request), {"type": "text", "text": request["question"]}]}] for request in requests]
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=-1)
    answers = []
    for output in server.chat(chats, sampling, use_tqdm=False):
        answer = output.outputs[0]
        logprobs = [[step[token].logprob for token in sorted(step)] for step in answer.logprobs]
        answers.append(
            {"prompt_ids": list(output.prompt_token_ids), "ids": list(answer.token_ids), "text": answer.text, "logprobs": logprobs}
        )
    return answers


def process(model: Path, requests: list[dict[str, str]]) -> list[dict[str, Any]]:
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(model, local_files_only=True)
    made = []
    for request in requests:
        content = [{"type": "image", "image": _open(request)}, {"type": "text", "text": request["question"]}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        made.append({"processor_ids": inputs["input_ids"][0].tolist(), "pixel_values": inputs["pixel_values"].tolist()})
    return made


def _image(request: dict[str, str]) -> dict[str, Any]:
    return {"type": "image_pil", "image_pil": _open(request)}


def _open(request: dict[str, str]) -> Any:
    from PIL import Image

    return Image.open(request["image"]).convert("RGB")


if __name__ == "__main__":
    main()
