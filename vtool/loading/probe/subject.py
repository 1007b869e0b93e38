"""What is audited:

something that can be made afresh, a checkpoint for it, and how the one goes into the other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Named = tuple[str, Tensor]


class NotRun(Exception):
    """No verdict can be had, for the one reason that the text says."""


class LoadFailed(Exception):
    """What the user gave does not load, for the reason that the text says."""


@dataclass(frozen=True)
class Subject:
    """Something whose weight loading is audited."""

    make: Callable[[], Any]
    """A new object, with `named_parameters()` and, where there, `named_buffers()`.

    The values of two of them are the same.
    """
    checkpoint: Mapping[str, Tensor]
    """What is loaded, in the order in which a loader gives it."""
    load: Callable[[Any, Iterable[Named]], object]
    origin: Literal["given", "twin", "discovered"]
    """Where the checkpoint comes from: the user's own; a tiny model of transformers' class; or
    names found by trying them on the class.

    Only of the first is it certain that the class must take all of it.
    """
    streams: bool = True
    """Whether it takes an iterator. transformers takes a folder."""
    code: tuple[str, ...] = ()
    """Path beginnings of the code that may keep a tensor: the class's, and its framework's."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else is to be told of it: its class, the parts that were replaced."""
    unread: Callable[[Any], set[str]] | None = None
    """Where loads cannot be watched:

    the checkpoint's tensors that the loader itself says it has not read.
    """
    destroy: Callable[[], None] | None = None
    """Where it does not stream: overwrites the file that was loaded."""
    paths: Callable[["Subject"], Mapping[str, str]] | None = None
    """Drives the framework's own ways of loading;

    for each, `unprotected`, `protected`, or why it was not run.
    """
    shards: Callable[["Subject", Mapping[str, Tensor]], dict[str, Any]] | None = None
    """Loads it on several ranks, and compares their shards with what was loaded on one."""
    process: Callable[[Any], object] | None = None
    """What the framework does to a loaded object before it serves it."""
    quantized: "Callable[[Mapping[str, Sequence[str]]], Subject] | None" = None
    """The same class made for quantized weights, and a checkpoint of such;

    given what goes into each parameter. May raise NotRun.
    """
