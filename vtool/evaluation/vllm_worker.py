"""The side of `vtool evaluate --with vllm` that runs vLLM: in its interpreter, without vtool.

    PYTHON vllm_worker.py ANSWERS

Standard input has a JSON line with the settings, and then one for each batch of questions; the file
descriptor ANSWERS is given a line for the settings, {"vllm": version}, and one for each batch.
"""

import base64
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# The folder of this file, whose modules are named as others': `vllm` is one.
del sys.path[0]

# Before vLLM is imported: nothing is fetched, and all is done in this process, which ends with
# everything that it has started.
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


class VllmModel:
    """A model in vLLM, and how it is asked."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest

        self.sampling = SamplingParams
        self.settings = settings
        self.model = LLM(**settings["engine"])
        adapter = settings["adapter"]
        self.adapter = LoRARequest("adapter", 1, adapter) if adapter else None

    def answer(self, batch: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the answers to a batch of questions, with the log-likelihood of each reference.

        An answer that is the reference has it already; the others are read with it once more.
        """
        pictures = [_pictures(one["images"]) for one in batch]
        sampling = [
            self.sampling(
                temperature=self.settings["temperature"],
                seed=one["seed"],
                max_tokens=self.settings["max_new_tokens"],
                ignore_eos=True,
                stop_token_ids=self.settings["ends"],
                logprobs=0,
            )
            for one in batch
        ]
        made = self._generate([one["prompt"] for one in batch], pictures, sampling)
        answers = [
            {
                "index": one["index"],
                "prompt": list(output.prompt_token_ids),
                "ids": list(output.outputs[0].token_ids),
                "logprob": output.outputs[0].cumulative_logprob,
            }
            for one, output in zip(batch, made, strict=True)
        ]
        pairs = zip(batch, answers, strict=True)
        rest = [place for place, (one, own) in enumerate(pairs) if one["wanted"] != own["ids"]]
        scoring = self.sampling(temperature=0, max_tokens=1, prompt_logprobs=0)
        read = self._generate(
            [batch[place]["whole"] for place in rest],
            [pictures[place] for place in rest],
            [scoring] * len(rest),
        )
        for place, output in zip(rest, read, strict=True):
            ids, logs = output.prompt_token_ids, output.prompt_logprobs
            answers[place]["whole"] = list(ids)
            answers[place]["reference"] = sum(
                logs[at][ids[at]].logprob for at in batch[place]["supervised"]
            )
        return answers

    def _generate(
        self, prompts: Sequence[list[int]], pictures: Sequence[list[Any]], sampling: Sequence[Any]
    ) -> list[Any]:
        asked = [
            {"prompt_token_ids": ids} | ({"multi_modal_data": {"image": images}} if images else {})
            for ids, images in zip(prompts, pictures, strict=True)
        ]
        if not asked:
            return []
        made: list[Any] = self.model.generate(
            asked, list(sampling), use_tqdm=False, lora_request=self.adapter
        )
        return made


def _pictures(encoded: Sequence[str]) -> list[Any]:
    from PIL import Image

    return [Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB") for one in encoded]


def main() -> None:
    """Answer batches until there are no more."""
    with os.fdopen(int(sys.argv[1]), "w") as answers:

        def say(value: object) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        server = VllmModel(json.loads(sys.stdin.readline()))
        say({"vllm": sys.modules["vllm"].__version__})
        for line in sys.stdin:
            say(server.answer(json.loads(line)))


if __name__ == "__main__":
    main()
