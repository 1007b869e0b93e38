"""Settings of a recipe of kind `load_check`: whose weight loading is checked, and how."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vtool.config.schema.base import Settings
from vtool.diagnostics.rules_loading import CLASS_RULES, FRAMEWORK_CLASS_RULES

if TYPE_CHECKING:
    Check = str
else:
    Check = Literal[CLASS_RULES + FRAMEWORK_CLASS_RULES]
SourceKind = Literal[
    "owned",
    "reusable_buffer",
    "bucketed",
    "shuffled",
    "sglang_marked",
    "safetensors",
    "runai",
    "runai_distributed",
    "fastsafetensors",
]
Format = Literal[
    "fp8-channel",
    "fp8-tensor",
    "fp8-block",
    "int8-channel",
    "int4",
    "int4-asymmetric",
    "gptq",
    "awq",
    "bitsandbytes",
]
ClassFramework = Literal["vllm", "transformers", "sglang"]


class Subjects(Settings):
    """The classes and folders whose loading of weights is checked."""

    names: tuple[str, ...] = ()
    """Such as vllm:BertModel, or python:FILE.py:factory.

    What the command line names takes their place.
    """
    all: ClassFramework | None = None
    """Every class that this framework has registered."""
    match: str = Field(default="*", min_length=1)
    """With `all`: only names that fit this pattern, as the shell understands it."""
    changed_since: str | None = Field(default=None, min_length=1)
    """With `all`: only classes whose code was changed since this git commit.

    Counted are a class's file, and those that it imports from the framework's folders of models.
    """


class Limits(Settings):
    """The most that one subject may take. One that takes more is stopped, and says so."""

    seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Time: on a busy machine, that in which its processes computed."""
    memory_mib: int = Field(default=1536, ge=64)
    """Resident memory, in MiB, of which the framework itself is about 500.

    The class of a folder that would take more is asked by the headers of its files, and loaded part
    by part, within `parts_mib`.
    """
    parts_mib: int = Field(default=4096, ge=64)
    """Resident memory, in MiB, of a class that is loaded part by part.

    The largest tensor has to fit twice.
    """


class LoadCheck(Settings):
    """A recipe of kind `load_check` after composition and validation."""

    kind: Literal["load_check"]
    """The purpose of the recipe: checking that every weight lands, whatever loads it."""
    subjects: Subjects = Subjects()
    sources: tuple[SourceKind, ...] = ("owned", "reusable_buffer", "bucketed", "shuffled")
    """The loaders that weights come from.

    `owned`: tensors in memory of their own, which all others are compared with; it is always there.
    `reusable_buffer`: a ring of buffers, each destroyed when the next one is asked for. `bucketed`:
    lists of tensors, a call each, as weight synchronization sends them. `shuffled`: another order.
    `sglang_marked`: as SGLang's update of weights hands them over. `safetensors`, `runai`,
    `runai_distributed` and `fastsafetensors`: these libraries' own readers, where they are there.
    """
    slots: int = Field(default=1, ge=1)
    """Buffers of the ring of `reusable_buffer`:

    a tensor is valid until so many more have been asked for.
    """
    checks: tuple[Check, ...] = ()
    """The rules that are asked. Default: all."""
    formats: tuple[Format, ...] = ()
    """The formats that `quantised-load` makes vLLM's classes for.

    Default: fp8-channel, and fp8-block of classes whose own file has `weight_scale_inv`.
    """
    limits: Limits = Limits()
    jobs: int = Field(default=2, ge=1)
    """Subjects that are checked at the same time."""
    python: str | None = Field(default=None, min_length=1)
    """The interpreter that has the framework.

    Default: .vllm-venv/bin/python where that is there, else the one that runs vtool.
    """
    allow: tuple[str, ...] = ()
    """Patterns of parameters and tensors that may be left unwritten or unread."""
