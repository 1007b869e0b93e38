"""Drives a framework's own ways of loading; shared by vLLM's and SGLang's.

A path is `unprotected` where it hands the class tensors that do not stay valid and the class ends
with other bytes, else `protected`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch import Tensor

from .errors import error_text
from .sources import Owned
from .state import MARKS, compare_states, mark, snapshot
from .subject import Named, Subject

Protection = Literal["unprotected", "protected"]


def run_paths(paths: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """Return for each path its protection, or `not run:` and why."""
    return {path: _run(drive) for path, drive in paths.items()}


def _run(drive: Callable[[], str]) -> str:
    try:
        return drive()
    except ImportError as error:
        return f"not run: {error}"
    except Exception as error:
        return f"not run: {error_text(error)}"


def load_new(subject: Subject, weights: Iterable[Named]) -> Any:
    """Return a new object, marked and loaded."""
    model = subject.make()
    mark(model, MARKS[0])
    subject.load(model, weights)
    return model


def protection(expected: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> Protection:
    """Return `unprotected` where any tensor is other than it should be."""
    return "unprotected" if compare_states(expected, observed) else "protected"


def protection_of_loaded(subject: Subject, model: Any) -> Protection:
    """Compare a loaded object with one that was loaded from tensors that stay valid."""
    return protection(snapshot(load_new(subject, Owned(subject.checkpoint))), snapshot(model))
