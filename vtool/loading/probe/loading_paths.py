"""Drives a framework's own ways of loading; shared by vLLM's and SGLang's.

A path is `unprotected` where it hands the class tensors that do not stay valid and the class ends
with other bytes, else `protected`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

from .errors import error_text
from .reference import load_new
from .sources import OwnedSource
from .state import compare_states, copy_state
from .subject import Subject

Protection = Literal["unprotected", "protected"]


def run_paths(paths: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """Return for each path its protection, or `not run:` and why."""
    found = {}
    for path, drive in paths.items():
        try:
            found[path] = drive()
        except Exception as error:
            why = error if isinstance(error, ImportError) else error_text(error)
            found[path] = f"not run: {why}"
    return found


def protection(expected: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> Protection:
    """Return `unprotected` where any tensor is other than it should be."""
    return "unprotected" if compare_states(expected, observed) else "protected"


def protection_of_loaded(subject: Subject, model: Any) -> Protection:
    """Compare a loaded object with one that was loaded from tensors that stay valid."""
    return protection(
        copy_state(load_new(subject, OwnedSource(subject.checkpoint))), copy_state(model)
    )
