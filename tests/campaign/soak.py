"""A long run of a tiny model: its processes' memory, descriptors and threads stay as they are."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaign import runs, template
from tests.campaign.state import Tally

SECONDS_BETWEEN = 0.5
FLAT = 0.01
"""The share by which a number may grow from the second quarter of the steps to the last one."""
LEAST_SAMPLES = 40


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a run's process and its data workers at one moment."""

    step: int
    memory: int
    """Bytes of the process itself and its workers that are no file's. Those that a forked process
    shares with its parent count in both: that it writes to one of them later is no growth."""
    own: int
    """Bytes of them that no other process has."""
    descriptors: int
    threads: int


def soak(steps: int) -> Callable[[Tally, Path, float], None]:
    """Return the part that runs so many steps; `until` does not cut it short."""

    def work(tally: Tally, folder: Path, until: float) -> None:
        if tally.counts["runs"]:
            return
        rows = runs.write_all_rows(folder / "rows")
        place = runs.fresh(folder / "soak")
        variant = runs.Variant("soak", ("data.workers=2", runs.ASYNC))
        more = (
            f"train={{steps:{steps},epochs:null}}",
            *(
                "data.global_batch_size=1",
                "checkpoint.every_steps=200",
                "evaluation.every_steps=200",
            ),
        )
        done = template.fork(runs.command(rows, variant, *more), place)
        samples = _watch(done, place / runs.RUN, steps)
        tally.counts["runs"] += 1
        tally.counts["steps"] += samples[-1].step if samples else 0
        tally.counts["samples"] += len(samples)
        if done.status != {0: 0}:
            tally.problem("the run fails", runs.last_lines(done.printed))
        _judge(tally, samples, steps)

    return work


def _watch(done: template.Forked, run: Path, steps: int) -> list[Sample]:
    samples: list[Sample] = []
    while not done.poll():
        time.sleep(SECONDS_BETWEEN)
        step = _last_step(run / "metrics.jsonl")
        # the end has an export, a page, and no workers: it is no part of the loop
        if 0 < step < steps and (one := _sample(done.pids[0], step)):
            samples.append(one)
    return samples


def _last_step(metrics: Path) -> int:
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 2000))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        number = line.partition(b'"step": ')[2].partition(b",")[0]
        if number.isdigit():
            return int(number)
    return 0


def _sample(pid: int, step: int) -> Sample | None:
    """Sum over a process and its children; None while one of them begins or ends."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids = [pid, *map(int, children)]
        memory = sum(_bytes(each, "Anonymous:") for each in pids)
        own = sum(_bytes(each, "Private_") for each in pids)
        descriptors = sum(len(os.listdir(f"/proc/{each}/fd")) for each in pids)
        threads = sum(len(os.listdir(f"/proc/{each}/task")) for each in pids)
    except (OSError, ValueError):
        return None
    return Sample(step, memory, own, descriptors, threads)


def _bytes(pid: int, kind: str) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = [line.split() for line in text.splitlines() if line.startswith(kind)]
    return sum(int(words[1]) for words in sizes) * 1024


def _judge(tally: Tally, samples: Sequence[Sample], steps: int) -> None:
    """Compare the second quarter of the steps, when all is warm, with the last."""
    early = [one for one in samples if steps / 4 <= one.step < steps / 2]
    late = [one for one in samples if one.step >= steps * 3 / 4]
    if min(len(early), len(late)) < LEAST_SAMPLES:
        tally.measured["soak"] = f"too short to judge: {len(early)} and {len(late)} samples"
        return
    own = _middle(early, "own")
    for name in ("memory", "descriptors", "threads"):
        before, after = _middle(early, name), _middle(late, name)
        # of memory, as a share of what is the run's own: the rest is that of what it began from
        grown = (after - before) / (own if name == "memory" else before)
        unit, scale = (" MiB", 2**20) if name == "memory" else ("", 1)
        shown = f"{before / scale:.1f} → {after / scale:.1f}{unit} ({grown:+.2%}"
        shown += f" of {own / scale:.0f} MiB)" if name == "memory" else ")"
        tally.measured[name] = shown
        if grown > FLAT:
            tally.problem(f"{name} grow", shown)


def _middle(samples: Sequence[Sample], name: str) -> float:
    return statistics.median(getattr(one, name) for one in samples)
