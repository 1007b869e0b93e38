"""Folders for a while, in the system's temporary directory.

What ends by `kill -9` removes nothing, so the next one clears up after it: each folder is locked
for as long as its process lives, and one that nobody has locked is removed.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "vtool-tmp-"
_LOCK = ".vtool-scratch"
"""Named so that no folder of a user's has it."""
_YOUNG = 60
"""Seconds that a folder is left alone: its maker may be about to lock it."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder of our own, which is removed in the end, whatever happens to its files."""
    _remove_left_behind(Path(tempfile.gettempdir()))
    made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with made as name, open(Path(name) / _LOCK, "wb") as lock:
        with suppress(OSError):  # a file system without locks: its state is unknown, and it stays
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def _remove_left_behind(directory: Path) -> None:
    """Remove the folders of processes that are gone: our user's, and none that is locked."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    found = entry.stat(follow_symlinks=False)
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG:
        return
    with open(os.open(Path(entry.path) / _LOCK, os.O_RDWR | os.O_NOFOLLOW), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where its process lives
        shutil.rmtree(entry.path, ignore_errors=True)
