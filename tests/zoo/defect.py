"""A defect: one real function replaced by one with upstream's mistake, and the check for it."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tests import process_state
from vtool.diagnostics import Diagnostic

_INJECTED = "VTOOL_TEST_DEFECT"


def injected() -> str | None:
    """Return the name of the defect that this process has now."""
    return os.environ.get(_INJECTED)


class Look(Protocol):
    """A real check on a small run, with no knowledge of any defect.

    Equal looks are one: what they find of healthy code is asked once.
    """

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        """Return its findings, in an empty folder.

        Raises `AssertionError` where a check that is asked could not be made.
        """


@dataclass(frozen=True, slots=True)
class Defect:
    """A mistake that raises no error, modelled on one of another project."""

    name: str
    upstream: str
    """The case that it is modelled on: repository#number."""
    summary: str
    """The mistake, in a sentence."""
    caught_by: str
    """The rule that must name it, and no other one may."""
    look: Look
    at: str
    """The replaced function, as `module:attribute`, where the code under test looks it up."""
    wrong: Callable[[Any], Any]
    """Given the real thing, what makes the mistake."""
    mentions: str = ""
    """Words that the finding must contain."""

    @contextmanager
    def inject(self) -> Iterator[None]:
        """Meanwhile the code has it."""
        module, _, path = self.at.partition(":")
        *owners, name = path.split(".")
        owner: Any = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        os.environ[_INJECTED] = self.name
        own, kept = name in vars(owner), inspect.getattr_static(owner, name)
        before = process_state.snapshot()
        setattr(owner, name, self.wrong(getattr(owner, name)))
        try:
            yield
        finally:
            del os.environ[_INJECTED]
            if own:
                setattr(owner, name, kept)
            else:
                delattr(owner, name)
            # a defect of attention is registered with transformers
            process_state.restore(before, numerics_only=True)
