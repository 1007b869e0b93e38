"""A subject: an object that can be made afresh, a checkpoint for it, and how one is loaded."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .facts import About, CheckFacts, CheckpointSource, ValueDifference
from .formats import WeightFormat
from .held import RankTensors
from .quantized import Quantized
from .state import NamedState

NamedTensor = tuple[str, Tensor]
"""A tensor of a checkpoint, with its name."""


@dataclass(frozen=True)
class Subject:
    """An object whose weight loading is audited: how to make it, and what to load into it."""

    make: Callable[[], Any]
    """Make a new object, with `named_parameters()` and, where there, `named_buffers()`.

    The values of two of them are the same.
    """
    checkpoint: Mapping[str, Tensor]
    """The tensors that are loaded, in the order in which a loader gives them."""
    load: Callable[[Any, Iterable[NamedTensor]], object]
    """Load tensors into an object."""
    origin: CheckpointSource
    """The checkpoint's origin: the user; a tiny model of transformers' class; or `discover`.

    Only of the user's own is it certain that the class must take all of it.
    """
    streams: bool = True
    """True if it takes an iterator of tensors; transformers' classes take a folder."""
    code: tuple[str, ...] = ()
    """Path beginnings of the code that may keep a tensor: the class's, and its framework's."""
    about: About = field(default_factory=About)
    """Further facts for the report: the class, its line, the parts that were replaced."""
    unread: Callable[[Any], set[str]] | None = None
    """Return the tensors that the loader itself says it has not read.

    Given where loads cannot be watched.
    """
    destroy: Callable[[], None] | None = None
    """Overwrite the file that was loaded, where the subject does not stream."""
    paths: Callable[["Subject"], Mapping[str, str]] | None = None
    """Drive the framework's own ways of loading.

    Returns for each `unprotected`, `protected`, or why it was not run.
    """
    elsewhere: (
        Callable[[NamedState, Mapping[str, Tensor]], Mapping[str, ValueDifference]] | None
    ) = None
    """Load in processes with other hash seeds, and return what differs from a state.

    Given that state, and the masks of what no load has written. Raises RuntimeError.
    """
    on_ranks: (
        Callable[["Subject", Sequence[str], "RankTensors"], Mapping[str, CheckFacts]] | None
    ) = None
    """Load on two ranks, in the layout of each rule, and compare with what was loaded on one."""
    computed: Callable[["Subject"], CheckFacts] | None = None
    """Compare what it computes, loaded, with transformers' class. Raises NotRun."""
    process: Callable[[Any], object] | None = None
    """Do to a loaded object what the framework does before it serves it."""
    quantized: "Callable[[WeightFormat, Mapping[str, Sequence[str]]], QuantizedTwin] | None" = None
    """Return the same class made for quantized weights, with a checkpoint of such.

    Given a format, and for each parameter the tensors that go into it. Raises NotRun.
    """


@dataclass(frozen=True)
class QuantizedTwin:
    """A class that was made for a format of quantized weights."""

    subject: Subject
    given: Quantized
    """The checkpoint of `subject`, and the layers that are quantized there."""
    replaced: tuple[str, ...] = ()
    """Parts that do not run on a CPU and were replaced for it."""


def describe_class(model_class: type, method: Callable[..., Any], **more: Any) -> About:
    """Return a class's name, the place of its `method` where it has code, and `more` fields."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return About(
        class_name=f"{model_class.__module__}.{model_class.__name__}",
        file=code and code.co_filename,
        line=code and code.co_firstlineno,
        **more,
    )
