"""Makes the order of a class's threads the same at every load.

A class that hands tensors to threads loads otherwise from run to run. Here its tasks run one after
the other: at once, or, where a loader uses its buffers again, as late as they can, which is when
most goes wrong. Where threads wait for the loader they run at the same time, and chance has a
part in what is found: `TaskOrder.by_chance` says so.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

LONGEST_TASK_SECONDS = 1.0
"""Tasks that take longer may wait for others, as a queue's consumer does: these run in parallel."""
LONGEST_THREAD_SECONDS = 0.05
"""Threads that a class starts itself, and that take longer, run on in parallel as well."""
LATEST_SECONDS = 0.5
"""Tasks that nobody asks for start where no other has come for this time: what submits them may
wait for them.
"""
FINISHED = ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")


class TaskOrder:
    """The tasks and threads that wait for their turn, and what is known of those that had it."""

    def __init__(self) -> None:
        self.by_chance = False
        """The class starts threads itself, or some ran during the load: their order is chance."""
        self._waiting: list[Callable[[], bool]] = []
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._last = 0.0
        self._asked: asyncio.AbstractEventLoop | None = None

    def add(self, begin: Callable[[], bool]) -> None:
        """Add a task to those that wait to be run in order.

        Args:
            begin: starts it, and returns True if it has ended.
        """
        with self._lock:
            self._waiting.append(begin)
            self._last = time.monotonic()
            if self._timer is None:
                self._wait(LATEST_SECONDS)

    def run(self, *, parallel: bool = False) -> None:
        """Run all that wait, in the order in which they came.

        Args:
            parallel: nobody has asked for them, so that the load may continue meanwhile.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.by_chance |= parallel and bool(waiting)
            for begin in waiting:
                ended = begin()
                self.by_chance |= not ended

    def run_when_idle(self) -> None:
        """Run all that wait once this thread's event loop, if it has one, has nothing else to do.

        Its tasks are awaited by callbacks, so nobody asks for their results.
        """
        loop = asyncio._get_running_loop()
        if loop is not None and self._asked is not loop:
            self._asked = loop
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if getattr(loop, "_ready", None):  # what another kind of loop has to do cannot be seen
            loop.call_soon(self._look, loop)
            return
        self._asked = None
        self.run()

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._after_a_while)
        self._timer.daemon = True
        self._timer.start()

    def _after_a_while(self) -> None:
        with self._lock:
            left = self._last + LATEST_SECONDS - time.monotonic()
            if left > 0 and self._waiting:
                self._wait(left)
                return
            self.run(parallel=True)


class _Late(Future[Any]):
    """A result whose task starts when anybody looks at it."""

    def __init__(self, order: TaskOrder) -> None:
        self._start: Callable[[], None] = lambda: None
        super().__init__()
        self._start = order.run
        self._order = order

    @property
    def _condition(self) -> threading.Condition:
        """The lock that all of a future's methods take, and `wait` and `as_completed` do."""
        self._start()
        return self._lock

    @_condition.setter
    def _condition(self, lock: threading.Condition) -> None:
        self._lock = lock

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Add a callback for when the task has ended; to add one does not run the task yet."""
        with self._lock:
            waits = self._state not in FINISHED
            if waits:
                self._done_callbacks.append(fn)  # type: ignore[attr-defined]
        if waits:
            self._order.run_when_idle()
        else:
            super().add_done_callback(fn)


_ORDERS: list[TaskOrder] = []
"""The orders of the loads that run, the innermost last: as `ThreadPoolExecutor`, a process has one
of them.
"""


def run_late_tasks() -> None:
    """Run what waits: a loader has given its last tensor, so no later time is left."""
    if _ORDERS:
        _ORDERS[-1].run()


@contextmanager
def threads_in_order(code: Sequence[str] = (), *, late: bool = False) -> Iterator[TaskOrder]:
    """Run the tasks of thread pools in the order in which they are submitted.

    Args:
        code: beginnings of the paths of a class's code, whose own threads are ordered too.
        late: run them when their results are asked for, their pool shuts down, or the last tensor
            is given; else at once.
    """
    submit, shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown
    start, join, is_alive = (
        threading.Thread.start,
        threading.Thread.join,
        threading.Thread.is_alive,
    )
    order = TaskOrder()
    unstarted: set[threading.Thread] = set()

    def in_order(pool: Any, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        watched = _with_modes(partial(task, *args, **kwargs))
        if not late:
            done = submit(pool, watched)
            order.by_chance |= bool(wait([done], LONGEST_TASK_SECONDS).not_done)
            return done
        result = _Late(order)

        def begin() -> bool:
            result._start = lambda: None
            done = submit(pool, watched)
            done.add_done_callback(partial(_pass_on, result))
            return not wait([done], LONGEST_TASK_SECONDS).not_done

        order.add(begin)
        return result

    def after_tasks(pool: Any, *args: Any, **kwargs: Any) -> None:
        order.run()
        shutdown(pool, *args, **kwargs)

    def start_in_order(thread: threading.Thread) -> None:
        if not sys._getframe(1).f_code.co_filename.startswith(tuple(code)):
            start(thread)
            return
        order.by_chance = True
        thread.run = _with_modes(thread.run)  # type: ignore[method-assign]

        def begin() -> bool:
            start(thread)
            unstarted.discard(thread)  # now: who joins it meanwhile waits for its turn
            join(thread, LONGEST_THREAD_SECONDS)
            return not is_alive(thread)

        if late:
            unstarted.add(thread)
            order.add(begin)
        else:
            begin()

    def join_started(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread in unstarted:
            order.run()
        join(thread, timeout)

    def is_started_and_alive(thread: threading.Thread) -> bool:
        if thread in unstarted:
            order.run()
        return is_alive(thread)

    with ExitStack() as stack:
        _ORDERS.append(order)
        stack.callback(_ORDERS.remove, order)
        for owner, name, ours in (
            (ThreadPoolExecutor, "submit", in_order),
            (ThreadPoolExecutor, "shutdown", after_tasks),
            (threading.Thread, "start", start_in_order),
            (threading.Thread, "join", join_started),
            (threading.Thread, "is_alive", is_started_and_alive),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, ours)
        stack.callback(order.run)
        yield order
    if _ORDERS:
        _ORDERS[-1].by_chance |= order.by_chance


def _with_modes(task: Callable[[], Any]) -> Callable[[], Any]:
    """Return a task that another thread runs watched as this one is."""
    modes = list(_get_current_dispatch_mode_stack())

    def watched() -> Any:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            return task()

    return watched


def _pass_on(late: _Late, done: "Future[Any]") -> None:
    error = done.exception()
    if error is not None:
        late.set_exception(error)
    else:
        late.set_result(done.result())
