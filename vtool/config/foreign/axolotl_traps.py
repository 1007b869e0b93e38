"""Settings of axolotl's that contradict each other, or do not do what they say.

Read from the code of axolotl 0.21.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from vtool.config.foreign.deepspeed_file import find_contradictions
from vtool.config.foreign.hf_traps import (
    TheirSettings,
    find_unread_warm_up,
    find_unscored_schedule,
)
from vtool.config.foreign.theirs import ForeignFile
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.foreign.word import is_whole
from vtool.diagnostics import Diagnostic

_TEMPLATES = (
    *("qwen2_vl", "qwen3_5", "gemma3", "gemma3n", "gemma4", "gemma4_unified"),
    *("llama3_2_vision", "llama4", "pixtral", "mistral_v7_tekken"),
)
"""Templates of which axolotl knows where a role begins and ends (processing_strategies.py)."""
_KNOWN_MODELS = re.compile(
    r"(?i)paddleocr|cohere|command|compass|muse|qwen3[._]5|qwen3[._]6|qwen4|glm-?5|nemotron"
    r"|mistral|magistral|ministral|devstral"
)
"""Models that axolotl knows by themselves, or whose tokenizer says it."""
_TRAINER = ForeignTrainer(
    name="axolotl",
    title="axolotl",
    command=("axolotl", "train"),
    files=(),
    kind_of_training="adapter",
    wants_adapters=lambda value: value in ("lora", "qlora"),
    length_word="sequence_len",
    overlong="drop",
    layout="messages",
)
_DEFAULTS = {"max_grad_norm": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
"""transformers' own, which axolotl leaves as they are."""


class _InTransformersWords(TheirSettings):
    """Axolotl's settings as it hands them to transformers; None for what it computes."""

    words: ClassVar = {
        "per_device_train_batch_size": "micro_batch_size",
        "lr_scheduler_type": "lr_scheduler",
        "optim": "optimizer",
    }

    def __getitem__(self, name: str) -> Any:
        given = self.theirs.given
        if name in ("bf16", "fp16"):
            half = str(given.get("bf16", "auto")).lower() in ("true", "auto", "full")
            return half if name == "bf16" else not half and given.get("fp16") is True
        if name == "gradient_accumulation_steps" and is_whole(whole := given.get("batch_size")):
            size = given.get("micro_batch_size", 1)
            return whole // size if is_whole(size) else None
        if name in ("warmup_steps", "warmup_ratio"):
            steps = given.get("warmup_steps")
            return steps if name == "warmup_steps" and is_whole(steps) and steps != 1 else None
        default = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, **_DEFAULTS}
        value = super().__getitem__(name)
        return default.get(self.word(name)) if value is None else value


def find_axolotl_traps(theirs: ForeignFile) -> Iterator[Diagnostic]:
    """Yield findings about settings of axolotl's that do not do what they say."""
    given = theirs.given
    sees = bool(given.get("processor_type"))
    if sees and given.get("sample_packing") is True:
        yield theirs.find(
            "refused-there",
            "sample_packing",
            "sample_packing is true, and axolotl does not pack rows with images",
            "set sample_packing: false; here data.packing=token_budget packs them",
        )
    template = str(given.get("chat_template") or "tokenizer_default")
    told = given.get("role_boundaries") or given.get("train_on_inputs") is True
    named = _KNOWN_MODELS.search(str(given.get("base_model")))
    if sees and not told and not named and template not in _TEMPLATES:
        yield theirs.find(
            "silent-trap",
            "chat_template" if "chat_template" in given else "processor_type",
            f"with chat_template={template}, axolotl does not know where an answer to an image"
            " begins: the loss is on questions and system messages as well, after one warning",
            f"set chat_template to one of {', '.join(_TEMPLATES)}, where it fits the model, or"
            " give role_boundaries; here answers alone are learnt",
        )
    look = _InTransformersWords(theirs, _TRAINER, None)
    yield from find_contradictions(look)
    scored = given.get("test_datasets") or given.get("val_set_size")
    scores = bool(scored) and given.get("eval_strategy") != "no"
    yield from find_unscored_schedule(look, scores=scores)
    yield from find_unread_warm_up(look)
    if given.get("adapter") == "qlora" and given.get("load_in_4bit") is not True:
        yield theirs.find(
            "refused-there",
            "adapter",
            "adapter is qlora without load_in_4bit: true: axolotl refuses it",
            "set load_in_4bit: true, or adapter: lora",
        )
    if given.get("warmup_steps") and given.get("warmup_ratio"):
        yield _exclusive(theirs, "warmup_ratio", "warmup_steps")
    if given.get("test_datasets") and given.get("val_set_size"):
        yield _exclusive(theirs, "val_set_size", "test_datasets")
    if given.get("evals_per_epoch") and given.get("eval_steps"):
        yield _exclusive(theirs, "evals_per_epoch", "eval_steps")
    if given.get("saves_per_epoch") and given.get("save_steps"):
        yield _exclusive(theirs, "saves_per_epoch", "save_steps")
    if given.get("batch_size") and given.get("gradient_accumulation_steps"):
        yield _exclusive(theirs, "batch_size", "gradient_accumulation_steps")


def _exclusive(theirs: ForeignFile, name: str, other: str) -> Diagnostic:
    message = f"axolotl refuses {name} together with {other}"
    return theirs.find("refused-there", name, message, "leave one of them out")
