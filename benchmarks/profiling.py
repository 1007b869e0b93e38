"""What the profiler costs where it does not record: off, before its interval, and after it.

    without     the loop's body as it would be without a profiler: the step, metrics.jsonl, the display
    off         `vtool.training.sft._steps` with profiler.tool=none
    before      the same with profiler=torch, and the interval still to come
    after       the same, the interval over and its trace written
    recording   inside the interval, for comparison

All train the recipe `digits` in one process with one thread, on one session that goes on; they take turns of TURN steps in an order that
rotates, and each turn is timed by `time.process_time`. A ratio is the median over rounds of a turn's time over that of `without` in the
same round; in brackets, its quartiles. The second half of `without` against its first half shows the measurement's own error. The marks
alone, which are too cheap to be seen so, are timed by themselves.

    python -m benchmarks.profiling [--rounds N]
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # before torch is imported

import argparse
import contextlib
import io
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tests.runs import request, session
from vtool.data.loader import load_steps, micro_batches
from vtool.devices import keep_freed_memory
from vtool.engines.ranks import Ranks
from vtool.engines.roles import unmarked
from vtool.profiling.profiler import Profiler, open_profiler
from vtool.training.checkpoint import Snapshot, Writer
from vtool.training.display import Display
from vtool.training.metrics import append
from vtool.training.setup import Progress, Session
from vtool.training.sft import Watchers, _steps, train_step
from vtool.training.stop import StopRequest
from vtool.training.tracking import Trackers

TURN = 5
MARKS = 8
"""Parts of a step of one micro-batch that are marked."""


class Unsaved(Writer):
    """Keeps nothing: a turn's end is no end of a run."""

    def save(self, snapshot: Snapshot) -> None:
        pass


class Timed(Display):
    """Knows when a step was last shown: what a turn's end does besides is no part of it."""

    shown = 0.0

    def step(self, metrics: Mapping[str, Any], step_seconds: float) -> None:
        super().step(metrics, step_seconds)
        self.shown = time.process_time()


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
        mine: Callable[[int], Any] = lambda step: micro_batches(opened.plan, kept, step, 0, 1, run.data.micro_batch_size)  # noqa: E731
        loaded = load_steps(opened.rows["train"], steps, mine, 0)
        began = time.process_time()
        for step in steps:
            since = time.perf_counter()
            metrics, _ = train_step(opened, self.progress, step, next(loaded), StopRequest())
            self.progress.step = step
            self.progress.seconds += time.perf_counter() - since
            metrics["seconds"] = self.progress.seconds
            append(opened.folder.metrics, metrics)
            self.display.step(metrics, time.perf_counter() - since)
        return (self.display.shown - began) / TURN

    def profiled(self, profiler: Profiler) -> float:
        part = replace(self.session, total_steps=10**9)  # no turn's last step is the run's
        stop = StopsAfter(TURN)
        began = time.process_time()
        _steps(part, self.progress, Watchers(self.writer, stop, self.display, Trackers({}), profiler))
        return (self.display.shown - began) / TURN


class StopsAfter(StopRequest):
    """Asks for a stop in the last step of a turn."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        super().__init__()

    @property
    def signal(self) -> int | None:  # type: ignore[override]
        self.left -= 1
        return 2 if self.left <= 0 else None

    @signal.setter
    def signal(self, _: int | None) -> None:
        pass  # the constructor sets it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds: int = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        quiet = ("checkpoint.every_steps=null", "evaluation.every_steps=null", "data.validation=[]", f"run.dir={folder}/run")
        with contextlib.redirect_stdout(io.StringIO()):
            opened, progress = session(request("digits", *quiet))
        turns = Turns(opened, progress, Path(folder))
        turns.without()
        recording = _recording(turns, Path(folder))
        loops: Mapping[str, Callable[[], float]] = {
            "without": turns.without,
            "off": _profiled(turns, Path(folder)),
            "before": _profiled(turns, Path(folder), 10**6),
            "after": _profiled(turns, Path(folder), 1),
        }
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        names = list(loops)
        for number in range(rounds):
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                seconds[name].append(loops[name]())
    _print(seconds, recording, rounds)


def _profiled(turns: Turns, folder: Path, first: int | None = None) -> Callable[[], float]:
    """Turns with the profiler off; or with an interval that begins with step `first`."""
    last = 2 + (first or 0)
    chosen = ("profiler=torch", f"profiler.profile_interval=[{first},{last}]", "profiler.warmup=0", "train.steps=9999999")
    run = request("digits", *(chosen if first else ())).run
    if first == 1:  # its trace was written by `_recording`
        (folder / "profile").mkdir(exist_ok=True)
        (folder / "profile/rank-0-steps-1-3.trace.json.gz").touch()
    return lambda: turns.profiled(open_profiler(run, Ranks(), folder, turns.progress.step, 10**9, lambda _: None))


def _recording(turns: Turns, folder: Path) -> float:
    """Seconds of CPU of a step that is recorded, the trace's export left out."""
    step = turns.progress.step
    interval = f"profiler.profile_interval=[{step + 2},{step + TURN + 1}]"
    run = request("digits", "profiler=torch", interval).run
    with open_profiler(run, Ranks(), folder, step, 10**9, lambda _: None) as profiler:
        return turns.profiled(profiler)


def _print(seconds: Mapping[str, list[float]], recording: float, rounds: int) -> None:
    base = seconds["without"]
    print(f"{rounds} rounds of {TURN} steps of `digits`, CPU time of one thread")
    print(f"{'':12} ms a step   over the loop without a profiler")
    for name, mine in seconds.items():
        low, middle, high = quantiles([one / other - 1 for one, other in zip(mine, base, strict=True)], n=4)
        print(f"{name:12} {1000 * median(mine):7.2f}     {middle:+6.2%} [{low:+.2%}, {high:+.2%}]")
    print(f"{'recording':12} {1000 * recording:7.2f}     {recording / median(base) - 1:+6.1%}")
    half = len(base) // 2
    print(f"without, second half of its turns over the first: {median(base[half:]) / median(base[:half]) - 1:+.2%}")

    def mark() -> None:
        with unmarked("forward"):
            pass

    cost = min(timeit.repeat(mark, number=10_000, repeat=20)) / 10_000
    print(f"{MARKS} marks of a step that nobody looks at: {1e6 * MARKS * cost:.2f} µs, {MARKS * cost / median(base):.4%} of it")


if __name__ == "__main__":
    main()
