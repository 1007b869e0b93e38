"""Distinguish a signal to our whole process group from a signal to this process alone.

The watched command is in our group. A signal that `kill -- -PGID`, Slurm or a supervisor sends to
the whole group has reached the command already. Passed on, it would arrive twice: many trainers end
at once, and without a checkpoint, at the second one. The kernel does not say to whom a signal was
sent. So a process that does nothing else reports whether it got the same signal.
"""

import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

_WAIT_SECONDS = 0.2
"""The time that the same signal may take to reach another process: Slurm sends one by one."""
_ALIVE_SECONDS = 2.0


class GroupWitness:
    """A process of our group that gets the same group signals, while this context lasts.

    It is forked, so this process must have one thread, and must have blocked the signals.
    """

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._signals = frozenset(signals)
        self._pid: int | None = None
        self._read: int | None = None

    def __enter__(self) -> Self:
        parent = os.getpid()
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        try:
            self._pid = os.fork()
        except OSError:  # no more processes are allowed: then the two cannot be distinguished
            os.close(write)
            return self
        if self._pid == 0:
            try:
                _keep_open(write)
                _report_signals(write, self._signals, parent)
            finally:
                os._exit(0)
        os.close(write)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        if self._read is not None:
            os.close(self._read)

    def has(self, number: int) -> bool:
        """Return whether the whole group was sent this signal, which we have just got."""
        if self._pid is None or self._read is None:
            return False
        until = time.monotonic() + _WAIT_SECONDS
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._read], [], [], left)[0]:
                return False
            seen = os.read(self._read, 256)
            if number in seen:
                return True
            if not seen:  # it was killed
                return False
        return False


def _keep_open(file: int) -> None:
    """Close all other files: who reads our output waits until nobody can write there."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) != file:
            with suppress(OSError):
                os.close(int(name))


def _report_signals(file: int, signals: frozenset[signal.Signals], parent: int) -> None:
    """Write the number of each signal that comes, as long as the parent lives."""
    while os.getppid() == parent:
        came = signal.sigtimedwait(signals, _ALIVE_SECONDS)
        # CPython 3.11 returns memory that nothing was written to after a stop (Ctrl-Z) of so long
        if came and came.si_signo in signals:
            os.write(file, bytes([came.si_signo]))
