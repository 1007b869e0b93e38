"""The progress of a command, on standard error while it takes long: no silence for seconds.

A short command prints none of it. The lines come from a thread, so that what is awaited need not be
cut into parts; where it has parts, `tick` counts them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from vtool.launchers import is_first

FIRST_SECONDS, EVERY, _MOST = 2.0, 5.0, 60.0
"""Seconds until the first line and the second, and the most between two: the longer it takes, the
fewer lines, in a log that is kept."""
START = 0.5
"""Seconds until a command says that it has begun."""


@dataclass(slots=True)
class _Task:
    what: str
    counts: str
    began: float
    done: int = 0
    total: int = 0
    inner: int = 0
    """Tasks that are being done inside it, and are reported in its place."""

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        parts = [self.what]
        if self.total:
            parts.append(f"{self.done:,} of {self.total:,} {self.counts}")
        parts.append(f"{seconds:.0f} s")
        if 0 < self.done < self.total:
            left = seconds / self.done * (self.total - self.done)
            parts.append(f"about {left:.0f} s left")
        return ", ".join(parts)


_begun = threading.Event()
"""Set once a task has begun: from then on, tasks report progress."""
_innermost: ContextVar[_Task | None] = ContextVar("innermost", default=None)


def write_line(text: str) -> None:
    """Write a line on standard error, past Python's locks: another thread may be about to fork."""
    sys.stdout.flush()
    os.write(2, f"{text}\n".encode())


def next_wait(wait: float) -> float:
    """Return the seconds until the next line, of those that went before the last one."""
    return EVERY if wait == FIRST_SECONDS else min(_MOST, 1.5 * wait)


@contextmanager
def working(
    what: str, say: Callable[[str], object] = write_line, counts: str = ""
) -> Iterator[None]:
    """Report every few seconds that this is still being done; of several, the innermost.

    Ranks but the first are silent.

    Args:
        what: is being done, in words.
        say: is given each line.
        counts: the parts that `tick` counts of it, in words.
    """
    if not is_first():
        yield
        return
    task, ended = _Task(what, counts, time.monotonic()), threading.Event()
    outer = _innermost.get()
    if outer is not None:
        outer.inner += 1
    before = _innermost.set(task)

    def beat() -> None:
        wait = FIRST_SECONDS
        while not ended.wait(wait):
            if not task.inner:
                say(task.line())
            wait = next_wait(wait)

    thread = threading.Thread(target=beat, name="progress", daemon=True)
    thread.start()
    _begun.set()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _innermost.reset(before)
        if outer is not None:
            outer.inner -= 1


def tick(done: int, total: int, counts: str) -> None:
    """Count the parts of the innermost task that are done, if it is these that it counts."""
    task = _innermost.get()
    if task is not None and task.counts == counts:
        task.done, task.total = done, total


def announce_start(words: str) -> None:
    """Say that a command has begun, unless it ends at once, and again while it imports packages.

    Imports alone take seconds, and on a busy machine many.
    """
    main = threading.get_ident()

    def beat() -> None:
        began = time.monotonic()
        time.sleep(START)
        write_line(f"{words}: starting")
        while not _begun.wait(EVERY):
            if _imports(main):
                write_line(f"{words}: importing packages, {time.monotonic() - began:.0f} s")
            else:  # who launches ranks imports again once they have ended
                began = time.monotonic()

    threading.Thread(target=beat, name="start", daemon=True).start()


def _imports(thread: int) -> bool:
    """Return whether a thread is importing a module."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
