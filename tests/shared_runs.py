"""Runs that several test files look at, trained once for all workers of a test session."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

SHORT = ("train.steps=40", "optim.warmup_steps=5")
"""Settings with which `digits` is trained for the tests that need some run, and no good one."""


def made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]
) -> tuple[Path, str]:
    """Make a folder in the first worker that needs it, and give it to the others.

    Args:
        factory: pytest's own; each worker has a folder of its own beside the others'.
        name: what the folder is called.
        make: fills the folder, and returns what it printed.
    """
    base = factory.getbasetemp()
    root = base.parent if (base.name.startswith("popen-")) else base
    folder, printed = root / name, root / f"{name}.printed"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            folder.mkdir()
            printed.write_text(make(folder))
    return folder, printed.read_text()
