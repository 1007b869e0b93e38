"""The watch of any trainer: what it really teaches, read from its gradients."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

_PAUSED = "VTOOL_WATCH_PAUSED"


def start(
    folder: str | Path,
    *,
    steps: int = 3,
    every: int = 0,
    tokens: int = 4096,
    memory: int = 1024,
    text: bool = True,
) -> Path:
    """Watch what this process trains from now on, in a notebook or a loop of one's own.

    Call it before the optimizer is made. `vtool watch --read FOLDER` says what was found, also
    while the run continues.

    Args:
        folder: the folder for the recorded facts; it must be empty, or not exist yet.
        steps: the number of first optimizer steps that are analyzed in full.
        every: after those, each step that is a multiple of this is analyzed too; 0: none.
        tokens: the most supervised tokens of a step whose weight in the loss is measured.
        memory: the most device memory, in MiB, for what the analysis keeps.
        text: record all token ids of the first rows, not only those that are learnt.

    Returns:
        The folder.

    Raises:
        ValueError: the folder is not empty, or cannot be written into.
        RuntimeError: this process is watched already.
    """
    from vtool.watch.folder import INJECT, WatchOptions, make_folder

    if os.environ.get("VTOOL_WATCH_TO"):
        raise RuntimeError(f"this process writes facts already, to {os.environ['VTOOL_WATCH_TO']}")
    made = make_folder(Path(folder)).resolve()
    os.environ.update(WatchOptions(steps, every, tokens, memory, text).variables(made))
    if str(INJECT) not in sys.path:
        sys.path.insert(0, str(INJECT))
    from vtool_watch import install  # type: ignore[import-not-found]

    install.install(import_module("torch.optim.optimizer"))  # no attribute of torch.optim
    return made


@contextmanager
def paused() -> Iterator[None]:
    """Leave out what is trained meanwhile, here and in processes that are started: trials, tests.

    It does nothing in a process that is not watched.
    """
    before = os.environ.get(_PAUSED)
    os.environ[_PAUSED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PAUSED]
        else:
            os.environ[_PAUSED] = before


__all__ = ["paused", "start"]
