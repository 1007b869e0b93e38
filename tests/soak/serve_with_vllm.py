"""Answer chats about images with vLLM, greedily. This runs in vLLM's own environment, and imports
nothing of vtool.

    VLLM_PYTHON serve_with_vllm.py MODEL REQUESTS ANSWERS [--dtype bfloat16] [--pil] [--adapter
    FOLDER]

REQUESTS: a JSON file {"max_tokens": 4, "requests": [{"messages": […], "images": ["scan.png"]}, …]},
where an image of `messages` is a part {"type": "image"}, and `images` has their files in that
order.
ANSWERS: for each request `prompt_ids`, what vLLM gave the model, image tokens included; `ids` and
`text` of the answer; `logprobs`, for each token of the answer those of the whole vocabulary, in its
order; and `processor_ids` and `pixel_values`, what transformers' own `AutoProcessor` makes of the
request in this environment.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

# Nothing is fetched, and all is done in this process: to start another one takes longer than these
# answers.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("requests", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--pil",
        action="store_true",
        help="resize images as vtool does, with PIL; torchvision's bicubic differs in rounding",
    )
    parser.add_argument(
        "--adapter",
        help="a folder in peft's format, which vLLM applies to MODEL without merging it",
    )
    arguments = parser.parse_args()
    asked = json.loads(arguments.requests.read_text())
    options = {"use_fast": False} if arguments.pil else {}
    answers = serve(arguments, asked["requests"], asked["max_tokens"], options)
    processed = [process(arguments.model, request, options) for request in asked["requests"]]
    arguments.answers.write_text(
        json.dumps([answer | made for answer, made in zip(answers, processed, strict=True)])
    )


def serve(
    arguments: argparse.Namespace,
    requests: list[dict[str, Any]],
    max_tokens: int,
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the answers of vLLM."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    server = LLM(
        model=arguments.model,
        dtype=arguments.dtype,
        mm_processor_kwargs=options,
        seed=0,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=16,
        max_logprobs=-1,
        limit_mm_per_prompt={"image": 2, "video": 0},
        **lora_options(arguments.adapter),
    )
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=-1)
    adapter = LoRARequest("adapter", 1, arguments.adapter) if arguments.adapter else None
    outputs = server.chat(
        [with_images(request) for request in requests],
        sampling,
        use_tqdm=False,
        lora_request=adapter,
    )
    return [
        {
            "prompt_ids": list(output.prompt_token_ids),
            "ids": list(output.outputs[0].token_ids),
            "text": output.outputs[0].text,
            "logprobs": [
                [step[token].logprob for token in sorted(step)]
                for step in output.outputs[0].logprobs
            ],
        }
        for output in outputs
    ]


def lora_options(adapter: str | None) -> dict[str, Any]:
    """Return the options with which vLLM applies an adapter, of the tower too."""
    if adapter is None:
        return {}
    rank = json.loads((Path(adapter) / "adapter_config.json").read_text())["r"]
    sizes = (8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM takes
    return {
        "enable_lora": True,
        "max_lora_rank": next(size for size in sizes if size >= rank),
        "enable_tower_connector_lora": True,
    }


def process(model: str, request: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs that the folder's processor makes of a request, without vLLM."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(model, local_files_only=True, **options)
    text = processor.apply_chat_template(
        request["messages"], add_generation_prompt=True, tokenize=False
    )
    images = [opened(image) for image in request["images"]]
    inputs = processor(text=[text], images=images or None, return_tensors="pt")
    pixels = inputs["pixel_values"].tolist() if images else None
    return {"processor_ids": inputs["input_ids"][0].tolist(), "pixel_values": pixels}


def with_images(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages with each image in its place, as vLLM takes pictures in memory."""
    images = iter(request["images"])

    def part_of(part: dict[str, Any]) -> dict[str, Any]:
        return (
            {"type": "image_pil", "image_pil": opened(next(images))}
            if part["type"] == "image"
            else part
        )

    def content_of(content: Any) -> Any:
        return content if isinstance(content, str) else [part_of(part) for part in content]

    return [
        {**message, "content": content_of(message["content"])} for message in request["messages"]
    ]


def opened(path: str) -> Any:
    from PIL import Image

    return Image.open(path).convert("RGB")


if __name__ == "__main__":
    main()
