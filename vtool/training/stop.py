"""A stop by signal: the first lets the step finish, the second ends the process at once."""

import os
import signal
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import FrameType
from typing import Any, Self

# Ctrl-C, an end asked for by a scheduler, and a terminal that is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `timeout` and some launchers send it to a process and to its whole group: within so many seconds,
# that is one request.
SAME_REQUEST = 1.0


class SignalContext(ABC):
    """A context that handles the signals of `taken_signals`, and then restores their handlers."""

    _before: Mapping[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self.handle) for number in taken_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @abstractmethod
    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, in the main thread."""


class StopRequest(SignalContext):
    """A context that takes the signals of `taken_signals`."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._came = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self.signal is None:
            self.signal = number
            self._came = time.monotonic()
            return
        if time.monotonic() - self._came < SAME_REQUEST:
            return
        # Ended here and now: unwinding would wait for ranks and workers that may never answer.
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the live panel has hidden the cursor
        os._exit(128 + number)


def taken_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask for a stop, but for ignored ones: `nohup` ignores SIGHUP."""
    return tuple(number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


def leave_terminal() -> None:
    """Send output to /dev/null once the terminal has gone: writing to it would fail."""
    for descriptor in (1, 2):
        # a terminal that is gone is no tty any more, but still this
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
