"""Files that are there as a whole, or not at all:

a process that is killed while it writes leaves no half of one under its name.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WRITING = ".writing-"
"""What the name of a file begins with that is being written."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` when all of it is there.

    Nothing is left of it where writing fails.
    """
    begun = path.with_name(f"{WRITING}{path.name}")
    try:
        yield begun
        os.replace(begun, path)
    finally:
        begun.unlink(missing_ok=True)


def replace_file(path: Path, text: str) -> None:
    """Write a text.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    with whole(path) as begun:
        begun.write_text(text)


def sweep(folder: Path, rank: int) -> None:
    """Remove what a process of this rank was killed over."""
    for left in folder.glob(f"{WRITING}rank-{rank}-*"):
        left.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time read and write a file of several.

    On a file system without locks, as if there were one process.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
