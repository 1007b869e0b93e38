"""Data workers that end by themselves: which one did, and the rows that it was at."""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from vtool.data.row import refuse
from vtool.diagnostics import Findings

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 2.0
"""A pipe breaks before the process at its other end can be seen to be gone."""


def end_with_parent(parent: int, worker: int) -> None:
    """End this data worker as soon as its parent has, even if that was killed.

    torch's worker then ends its loop, and waits for ever for somebody to read what it has sent.

    Args:
        parent: the process that started it.
        worker: its number, which `worker_init_fn` of a `DataLoader` is called with.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class RowsInWork:
    """The row that each data worker is at, in memory that they share with their parent."""

    def __init__(self, workers: int) -> None:
        # [workers, 2]: the process, 0 before its first row, and the row, −1 between them
        self._marks: Tensor = torch.zeros((workers, 2), dtype=torch.int64)
        self._marks.share_memory_()  # type: ignore[no-untyped-call]

    def mark(self, row: int) -> None:
        """Note that this process begins with a row, or waits (−1), if it is a data worker."""
        if (worker := get_worker_info()) is not None:
            self._marks[worker.id, 0] = os.getpid()
            self._marks[worker.id, 1] = row

    def lost(self) -> list[tuple[int, int]]:
        """Return the process and the row of each worker that is no more."""
        alive = {each.pid for each in multiprocessing.active_children()}
        marks = [(int(pid), int(row)) for pid, row in self._marks.tolist()]
        return [(pid, row) for pid, row in marks if pid and pid not in alive]


def with_named_failures(
    work: Callable[[], T],
    in_work: Callable[[], RowsInWork | None],
    name: Callable[[int], str],
) -> T:
    """Call a function, and name the row of each data worker that ends by itself meanwhile.

    torch raises its error wherever the process is, as its handler of SIGCHLD does: at a call, or as
    a function begins. So this is no context manager: the error could come as its `__exit__` begins,
    outside of any `try`.

    Args:
        work: the function that takes what the workers make.
        in_work: returns the rows in work, once there are workers.
        name: returns a row's name.

    Returns:
        What the function returns.

    Raises:
        Findings: `data-worker-failed`, for a worker that has ended by itself, in the place of the
            error that torch or a pipe raises.
    """
    try:
        return work()
    except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
        # no call stands before this `try`
        try:
            found = _finding(error, in_work(), name)
        except RuntimeError:  # torch's handler came only now; it raises once for a loader
            found = _finding(error, in_work(), name)
        if found is None:
            raise
        raise found from error


def _finding(
    error: Exception, in_work: RowsInWork | None, name: Callable[[int], str]
) -> Findings | None:
    """Return the finding of the workers that were lost; None for any other error."""
    torchs = isinstance(error, RuntimeError)
    if torchs and "DataLoader worker" not in str(error):
        return None
    lost = _lost(in_work)
    if not lost and not torchs:
        return None
    where = ", ".join(
        f"{f'at {name(row)}' if row >= 0 else 'between rows'} (process {pid})" for pid, row in lost
    )
    where = where or "before its first row"
    reason = f"; {str(error).partition(' It is possible')[0]}" if torchs else ""
    return refuse("data-worker-failed", f"a data worker ended by itself {where}{reason}", None)


def _lost(in_work: RowsInWork | None) -> list[tuple[int, int]]:
    if in_work is None:
        return []
    until = time.monotonic() + _SECONDS_TO_END
    while time.monotonic() < until:
        with suppress(RuntimeError):  # torch's handler of SIGCHLD may come only now
            if lost := in_work.lost():
                return lost
            time.sleep(0.05)
    return []
