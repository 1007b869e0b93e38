"""TRL, LLaMA-Factory and ms-swift: their settings and their habits."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.config.foreign.known_words import known_words
from vtool.model_folder import ModelFolder

_VISUAL = re.compile(
    r"(?i)(^|[-_./\d])vl([-_./\d]|$)|vision|visual|llava|internvl|pixtral|minicpm-?v|smolvlm"
    r"|glm-4[.\d]*v|gemma-?3-(4|12|27)b|qwen3[._]5|paligemma|idefics|kimi-vl"
)


@dataclass(frozen=True, slots=True)
class ForeignTrainer:
    """A trainer that takes the settings of transformers' Trainer."""

    name: str
    title: str
    """The trainer's name in messages."""
    command: tuple[str, ...]
    """The words that start it in a script."""
    files: tuple[str, ...]
    """Names of Python files that accelerate, torchrun or python start in the command's place."""
    kind_of_training: str
    """The setting that says whether adapters are trained."""
    wants_adapters: Callable[[Any], bool]
    length_word: str
    overlong: str
    """The treatment of longer rows."""
    layout: str
    """The format of its rows here."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Every setting with its default; None where it has no plain one."""
        return known_words(self.name).fields

    @property
    def release(self) -> str:
        """The name, and the releases that its settings were read from."""
        known = known_words(self.name)
        return f"{self.title} {known.release} with transformers {known.beside}"

    def adapters(self, given: Mapping[str, Any]) -> bool:
        """Return whether adapters are trained."""
        word = self.kind_of_training
        return self.wants_adapters(given.get(word, self.fields.get(word)))

    def longest(self, given: Mapping[str, Any]) -> int | None:
        """Return the length at which rows are cut or left out."""
        value = given.get(self.length_word, self.fields.get(self.length_word))
        return value if isinstance(value, int) and value > 0 else None

    def replaced(self, word: str) -> str | None:
        """Return the setting that replaced one of an earlier release, by its old name."""
        found = _REPLACED.get(word)
        return found[1] if found and (found[0] is None or self._means(found[0])) else None

    def successor(self, word: str) -> str | None:
        """Return the word that now means what one of an earlier release meant."""
        found = _REPLACED.get(word)
        takes_its_values = found and word not in self.fields and word != "group_by_length"
        return found[0] if found and takes_its_values and self._means(found[0]) else None

    def _means(self, word: str | None) -> bool:
        """Return whether a word means here what it means to most."""
        return word in self.fields and (word not in _LENGTHS or word == self.length_word)


_LENGTHS = ("max_length", "cutoff_len")
"""Words for the longest row; LLaMA-Factory's `max_length` is that of what it generates."""
_GONE = "transformers has taken it away"
_REPLACED: dict[str, tuple[str | None, str]] = {
    "warmup_ratio": ("warmup_steps", f"{_GONE}: `warmup_steps` below 1 is a share of all steps"),
    "evaluation_strategy": ("eval_strategy", "it is called `eval_strategy` now"),
    "max_seq_length": ("max_length", "it is called `max_length` now"),
    "train_type": ("tuner_type", "it is called `tuner_type` now"),
    "torch_dtype": ("dtype", "it is called `dtype` now"),
    "logging_dir": (None, f"{_GONE}: set the variable TENSORBOARD_LOGGING_DIR"),
    "save_safetensors": (None, f"{_GONE}: safetensors is what is written"),
    "overwrite_output_dir": (None, _GONE),
    "group_by_length": ("train_sampling_strategy", "`train_sampling_strategy: group_by_length`"),
}
"""Words of earlier releases: the word that has taken their place, if any, and how to write it."""

TRAINERS = {
    trainer.name: trainer
    for trainer in (
        ForeignTrainer(
            name="trl",
            title="TRL",
            command=("trl", "sft"),
            files=("sft.py", "sft_vlm.py"),
            kind_of_training="use_peft",
            wants_adapters=lambda value: value in (True, "true"),
            length_word="max_length",
            overlong="keep_start",
            layout="trl",
        ),
        ForeignTrainer(
            name="llamafactory",
            title="LLaMA-Factory",
            command=("llamafactory-cli", "train"),
            files=("train.py", "train_bash.py"),
            kind_of_training="finetuning_type",
            wants_adapters=lambda value: value == "lora",
            length_word="cutoff_len",
            overlong="keep_start",
            layout="llama_factory",
        ),
        ForeignTrainer(
            name="ms-swift",
            title="ms-swift",
            command=("swift", "sft"),
            files=("sft.py",),
            kind_of_training="tuner_type",
            wants_adapters=lambda value: value == "lora",
            length_word="max_length",
            overlong="delete",
            layout="swift",
        ),
    )
}


def looks_visual(model: object) -> bool:
    """Return whether a model sees images: by its folder's config, or by its name."""
    config = ModelFolder(Path(str(model)).expanduser()).config
    return "vision_config" in config if config else bool(_VISUAL.search(str(model)))
