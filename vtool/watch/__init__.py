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
        folder: where the facts go; it must be empty, or not be there yet.
        steps: how many optimizer steps are read whole.
        every: look again each time after this many steps; 0 is never.
        tokens: how many learnt tokens of a step are solved.
        memory: MiB that may be held on the device.
        text: keep the ids of rows.

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
