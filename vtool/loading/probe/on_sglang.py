"""SGLang's classes: so far only whether they are there."""

from collections.abc import Callable, Mapping
from pathlib import Path

from .subject import NotRun, Subject


def prepare() -> Mapping[str, str]:
    """Import it; its version."""
    import sglang

    return {"name": "sglang", "version": sglang.__version__}


def names() -> list[str]:
    """Not known without its engine."""
    return []


def subject(name: str, folder: Path, progress: Callable[[str], None]) -> Subject:
    """None can be made yet.

    Raises:
        NotRun: always.
    """
    raise NotRun("SGLang's classes cannot be made by this version of vtool")
