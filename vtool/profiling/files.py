"""Files that are written as a whole, or not at all.

A process that is killed while it writes leaves no half of a file under the file's name.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WRITING = ".writing-"
"""The beginning of the name of a file that is being written."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield the path to write to; it becomes `path` when the block ends.

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
        OSError: it cannot be written; the old file stays.
    """
    with written_whole(path) as begun:
        begun.write_text(text)


def remove_unfinished(folder: Path, rank: int) -> None:
    """Remove the unfinished files of a process of this rank that was killed."""
    for left in folder.glob(f"{WRITING}rank-{rank}-*"):
        left.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that one process at a time changes a file that several write.

    On a file system without locks, do nothing.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
