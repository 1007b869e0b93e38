"""Classes that hand tensors to threads come out the same at every load."""

import asyncio
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import pytest
from torch import Tensor

from tests.loading import models, threaded
from tests.loading.test_rules import errors, errors_of
from vtool.loading import check_load_weights
from vtool.loading.probe import threads
from vtool.loading.probe.threads import threads_in_order


class InThreads(models.Good):
    """Copies in threads, and waits for all of them at the end: too late for a buffer."""

    def load_weights(self, weights: models.Weights) -> None:
        with ThreadPoolExecutor(8) as pool:
            done = [
                pool.submit(self.put, name, tensor)  # the line that hands them over
                for name, tensor in weights
            ]
            for one in as_completed(done):
                one.result()


class InThreadsOneByOne(models.Good):
    """Waits for each before it asks for the next."""

    def load_weights(self, weights: models.Weights) -> None:
        with ThreadPoolExecutor(8) as pool:
            for name, tensor in weights:
                pool.submit(self.put, name, tensor).result()


class ByConsumer(models.Good):
    """Has a thread that takes tensors from a queue of one place."""

    def load_weights(self, weights: models.Weights) -> None:
        waiting: queue.Queue[tuple[str, Tensor] | None] = queue.Queue(1)

        def consume() -> None:
            while (pair := waiting.get()) is not None:
                self.put(*pair)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(consume)
            for name, tensor in weights:
                waiting.put((name, tensor.clone()))
            waiting.put(None)


class AwaitsEach(models.Good):
    """Waits for each thread of an event loop before it asks for the next."""

    def load_weights(self, weights: models.Weights) -> None:
        asyncio.run(self.load(weights))

    async def load(self, weights: models.Weights) -> None:
        for pair in weights:
            await asyncio.to_thread(self.put, *pair)


class JoinsEach(models.Good):
    """Starts a thread for each tensor, and waits for it before it asks for the next."""

    def load_weights(self, weights: models.Weights) -> None:
        for pair in weights:
            thread = threading.Thread(target=self.put, args=pair)
            thread.start()
            assert thread.is_alive() or thread.ident
            thread.join()


@pytest.mark.parametrize(
    "factory", [threaded.ByPool, threaded.ByThreads, threaded.ByWorkers, threaded.ByAsyncio]
)
def test_what_threads_keep_is_found_whatever_starts_them(
    factory: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LATEST_SECONDS", 0.1)
    (finding,) = errors_of(factory, threaded.checkpoint(), checks=["stale-reference"])
    assert finding.rule == "stale-reference"
    assert f"{threaded.ROWS} parameters hold bytes of what came later" in finding.message


@pytest.mark.parametrize("factory", [AwaitsEach, JoinsEach])
def test_threads_that_are_waited_for_are_right(factory: type) -> None:
    assert check_load_weights(factory, models.checkpoint()).verdict == "clean"


def test_what_is_chance_is_said_and_how_much_is_held_at_once_is_not_judged() -> None:
    result = check_load_weights(JoinsEach, models.checkpoint())
    assert result.checks["retained-memory"] == "not-run"
    assert "chance" in result.details["retained-memory"]["reason"]
    assert "chance" in result.details["subject"]["threads"]
    (finding,) = errors_of(threaded.ByThreads, threaded.checkpoint(), checks=["stale-reference"])
    assert finding.by_chance
    ordered = check_load_weights(InThreadsOneByOne, models.checkpoint())
    assert ordered.checks["retained-memory"] == "passed"
    assert "threads" not in ordered.details["subject"]


def test_every_tensor_of_a_class_with_threads_is_found_at_every_run_with_its_line() -> None:
    runs = [errors(InThreads) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]
    (finding,) = (one for one in runs[0] if one.rule == "stale-reference")
    assert "4 parameters hold bytes of what came later" in finding.message
    assert set(finding.tensors or ()) == {*models.checkpoint()}


def test_what_threads_read_is_seen_and_waiting_for_each_is_right() -> None:
    assert check_load_weights(InThreadsOneByOne, models.checkpoint()).verdict == "clean"
    assert "unconsumed-tensor" not in {one.rule for one in errors(InThreads)}


def test_a_thread_that_takes_from_a_queue_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONGEST_TASK_SECONDS", 0.01)
    monkeypatch.setattr(threads, "LATEST_SECONDS", 0.05)
    assert check_load_weights(ByConsumer, models.checkpoint()).verdict == "clean"


@pytest.mark.parametrize("late", [False, True])
def test_results_and_exceptions_are_those_of_the_tasks(late: bool) -> None:
    submit = ThreadPoolExecutor.submit
    with threads_in_order(late=late), ThreadPoolExecutor(4) as pool:
        order: list[int] = []
        done: list[Future[Any]] = [pool.submit(order.append, number) for number in range(9)]
        assert (order == []) == late
        wrong = pool.submit(int, "x")
        named = pool.submit(lambda: threading.current_thread().name)
        assert isinstance(wrong.exception(), ValueError)
        assert "ThreadPoolExecutor" in named.result()
        assert all(one.done() for one in done)
        assert order == list(range(9))
        assert list(pool.map(abs, [-1, 2])) == [1, 2]
    assert ThreadPoolExecutor.submit is submit
