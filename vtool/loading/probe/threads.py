"""Makes the order of a class's thread pools the same at every load.

A class that hands tensors to threads loads otherwise from run to run. Here its tasks run one after
the other: at once, or, where a loader uses its buffers again, as late as they can, which is when
most goes wrong.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

LONGEST_TASK_SECONDS = 1.0
"""Tasks that take longer may wait for others, as a consumer of a queue does: they run on beside."""
LATEST_SECONDS = 2.0
"""Tasks that nobody asks for start after this time: what submits them may wait for them."""
Submit = Callable[..., "Future[Any]"]


class _Late(Future[Any]):
    """A result whose task starts when anybody looks at it."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start: Callable[[], None] = lambda: None
        super().__init__()
        self._start = start

    @property
    def _condition(self) -> threading.Condition:
        """The lock that all of a future's methods take, and `wait` and `as_completed` do."""
        self._start()
        return self._lock

    @_condition.setter
    def _condition(self, lock: threading.Condition) -> None:
        self._lock = lock


class _LateTasks:
    """Tasks of one pool that wait until a result is asked for, or the pool shuts down."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._waiting: list[tuple[_Late, Callable[[], Any]]] = []
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def add(self, task: Callable[[], Any]) -> "Future[Any]":
        late = _Late(self.run)
        with self._lock:
            self._waiting.append((late, task))
            if self._timer is None:
                self._timer = threading.Timer(LATEST_SECONDS, self.run)
                self._timer.daemon = True
                self._timer.start()
        return late

    def run(self) -> None:
        """Run all that wait, in the order in which they were submitted."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for late, _ in waiting:
                late._start = lambda: None
            for late, task in waiting:
                done = self._submit(task)
                done.add_done_callback(partial(_pass_on, late))
                wait([done], LONGEST_TASK_SECONDS)


def _pass_on(late: _Late, done: "Future[Any]") -> None:
    error = done.exception()
    if error is not None:
        late.set_exception(error)
    else:
        late.set_result(done.result())


@contextmanager
def threads_in_order(*, late: bool = False) -> Iterator[None]:
    """Run the tasks of thread pools in the order in which they are submitted.

    Args:
        late: run them when their results are asked for, or their pool shuts down; else at once.
    """
    submit, shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown
    pools: dict[int, _LateTasks] = {}

    def in_order(pool: Any, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        modes = list(_get_current_dispatch_mode_stack())

        def watched() -> Any:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                return task(*args, **kwargs)

        if late:
            tasks = pools.setdefault(id(pool), _LateTasks(partial(submit, pool)))
            return tasks.add(watched)
        done = submit(pool, watched)
        wait([done], LONGEST_TASK_SECONDS)
        return done

    def after_tasks(pool: Any, *args: Any, **kwargs: Any) -> None:
        if tasks := pools.pop(id(pool), None):
            tasks.run()
        shutdown(pool, *args, **kwargs)

    ThreadPoolExecutor.submit = in_order  # type: ignore[method-assign]
    ThreadPoolExecutor.shutdown = after_tasks  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
        ThreadPoolExecutor.shutdown = shutdown  # type: ignore[method-assign]
        for tasks in pools.values():
            tasks.run()
