"""Benchmark: the cost of the profiler while it does not record.

It is off, before its interval, or after it.

    without    the loop's body as it would be without a profiler: the step, metrics.jsonl, the
               display
    off        `vtool.training.loop.train_loop` with profiler.tool=none
    before     the same with profiler=torch, and the interval still to come
    after      the same, the interval over and its trace written
    recording  inside the interval, for comparison

All train the recipe `digits` in one process with one thread, on one session that continues. Others
may use the machine, so there are two measurements:

    in pairs  a step of `without` and a step of the other, in an order drawn by chance, each by
              `time.thread_time`: what disturbs one mostly disturbs both. The median over the pairs'
              ratios, and in brackets its 95 % interval (bootstrap). `without` against itself is
              measured the same way: a cost that is smaller than its interval has not been seen.
    directly  all calls to the profiler that one step makes while it is off, 10 000 times, over the
              median step. No noise of the step is in it; what such calls do to caches is not,
              either.

    python -m benchmarks.profiling [--pairs N]
"""

import os

# before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import contextlib
import io
import random
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from tests.runs import request, session
from vtool.data.loader import load_steps, micro_batches
from vtool.devices import keep_freed_memory
from vtool.engines.ranks import Ranks
from vtool.profiling.profiler import RankProfiler, open_profiler
from vtool.training.checkpoint import Snapshot
from vtool.training.checkpoint_writer import CheckpointWriter
from vtool.training.display import Display
from vtool.training.loop import LoopTools, train_loop
from vtool.training.metrics import append
from vtool.training.session import Progress, Session
from vtool.training.step import train_step
from vtool.training.stop import StopRequest
from vtool.training.tracking import Trackers

TURN = 1
RECORDED = 5
SPANS = 8
"""The spans of a step of one micro-batch, and the step itself."""


class Unsaved(CheckpointWriter):
    """A run folder that keeps nothing: a turn's end is no end of a run."""

    def save(self, snapshot: Snapshot) -> None:
        pass


class Timed(Display):
    """A display that knows when a step was last shown, for the time of a turn."""

    shown = 0.0

    def step(self, metrics: Mapping[str, Any], step_seconds: float) -> None:
        super().step(metrics, step_seconds)
        self.shown = time.thread_time()


class Turns:
    """One session, of which each contender takes some steps in its turn."""

    def __init__(self, opened: Session, progress: Progress, folder: Path) -> None:
        self.session, self.progress = opened, progress
        self.display = Timed(0, 1, silent=True)
        self.writer = Unsaved(folder / "none", 1, asynchronous=False)

    def without(self) -> float:
        opened, run = self.session, self.session.run
        steps = range(self.progress.step + 1, self.progress.step + 1 + TURN)
        kept = opened.ledgers["train"].kept

        def mine(step: int) -> Any:
            return micro_batches(opened.plan, kept, step, 0, 1, run.data.micro_batch_size)

        loaded = load_steps(opened.rows["train"], steps, mine, 0)
        began = time.thread_time()
        for step in steps:
            since = time.perf_counter()
            metrics, _ = train_step(opened, self.progress, step, next(loaded), StopRequest())
            self.progress.step = step
            self.progress.seconds += time.perf_counter() - since
            metrics["seconds"] = self.progress.seconds
            append(opened.folder.metrics, metrics)
            self.display.step(metrics, time.perf_counter() - since)
        return (self.display.shown - began) / TURN

    def profiled(self, profiler: RankProfiler, steps: int = TURN) -> float:
        part = replace(self.session, total_steps=10**9)  # no turn's last step is the run's
        stop = StopsAfter(steps)
        began = time.thread_time()
        train_loop(
            part, self.progress, LoopTools(self.writer, stop, self.display, Trackers({}), profiler)
        )
        return (self.display.shown - began) / steps


class StopsAfter(StopRequest):
    """Asks for a stop in the last step of a turn."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        super().__init__()

    @property
    def signal(self) -> int | None:
        self.left -= 1
        return 2 if self.left <= 0 else None

    @signal.setter
    def signal(self, _: int | None) -> None:
        pass  # the constructor sets it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    pairs: int = parser.parse_args().pairs
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        quiet = (
            "checkpoint.every_steps=null",
            "evaluation.every_steps=null",
            "data.validation=[]",
            f"run.dir={folder}/run",
        )
        with contextlib.redirect_stdout(io.StringIO()):
            opened, progress = session(request("digits", *quiet))
        turns = Turns(opened, progress, Path(folder))
        turns.without()
        recording = _recording(turns, Path(folder))
        off = open_profiler(opened.run, Ranks(), Path(folder), 0, 10**9, print)
        loops: Mapping[str, Callable[[], float]] = {
            "without": turns.without,
            "off": lambda: turns.profiled(off),
            "before": _profiled(turns, Path(folder), 10**6),
            "after": _profiled(turns, Path(folder), 1),
        }
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
        chance = random.Random(0)
        for _ in range(pairs):
            for name, other in loops.items():
                if chance.random() < 0.5:
                    base = turns.without()
                    seconds[name].append((other(), base))
                else:
                    mine = other()
                    seconds[name].append((mine, turns.without()))
    _print(seconds, recording, _direct(off))


def _direct(off: RankProfiler) -> float:
    """Return the seconds of all the calls that a step makes to a profiler that is off."""
    metrics: dict[str, Any] = {}

    def step() -> None:
        span = off.begin(1)
        for _ in range(SPANS):
            with span("forward"):
                pass
        off.end(metrics)

    return min(timeit.repeat(step, number=10_000, repeat=20)) / 10_000


def _profiled(turns: Turns, folder: Path, first: int) -> Callable[[], float]:
    """Return turns with an interval that begins with step `first`."""
    interval = f"profiler.profile_interval=[{first},{first + 2}]"
    run = request(
        "digits", "profiler=torch", interval, "profiler.warmup=0", "train.steps=9999999"
    ).run
    if first == 1:  # its trace was written by `_recording`
        (folder / "profile").mkdir(exist_ok=True)
        (folder / "profile/rank-0-steps-1-3.trace.json.gz").touch()
    return lambda: turns.profiled(
        open_profiler(run, Ranks(), folder, turns.progress.step, 10**9, lambda _: None)
    )


def _recording(turns: Turns, folder: Path) -> float:
    """Return the CPU seconds of a step that is recorded, without the trace's export."""
    step = turns.progress.step
    interval = f"profiler.profile_interval=[{step + 2},{step + RECORDED + 1}]"
    run = request("digits", "profiler=torch", interval).run
    with open_profiler(run, Ranks(), folder, step, 10**9, lambda _: None) as profiler:
        return turns.profiled(profiler, RECORDED + 1)


def _print(
    seconds: Mapping[str, Sequence[tuple[float, float]]], recording: float, direct: float
) -> None:
    base = median(one for pairs in seconds.values() for _, one in pairs)
    print(
        f"{len(seconds['off'])} pairs of steps of `digits`, CPU time of one thread; a step without"
        f" a profiler: {1000 * base:.2f} ms"
    )
    print(f"{'':12} over the loop without a profiler, median [95 %]")
    for name, pairs in seconds.items():
        ratios = np.array([mine / other - 1 for mine, other in pairs])
        drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
        low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
        print(
            f"{name + (', again' if name == 'without' else ''):15} {np.median(ratios):+6.2%}"
            f" [{low:+.2%}, {high:+.2%}]"
        )
    print(f"{'recording':15} {recording / base - 1:+6.1%}")
    print(
        f"all calls to a profiler that is off, {SPANS} spans among them: {1e6 * direct:.2f} µs a"
        f" step, {direct / base:.4%} of it"
    )


if __name__ == "__main__":
    main()
