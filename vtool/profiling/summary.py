"""The contents of profile/summary.json: time, throughput and memory of the recorded steps.

Pure functions of what was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vtool.profiling.step_timer import PARTS
from vtool.profiling.tools import Recording

VERSION = 1
_SHOWN = 15
"""Operations in summary.json; the tables have more."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step of this rank. `tokens` and `samples` are those of all ranks."""

    step: int
    seconds: float
    tokens: int
    samples: int
    spent: Mapping[str, float]
    """Seconds by span; empty for a step that was not recorded."""


def split_step(spent: Mapping[str, float]) -> dict[str, float]:
    """Return a step's seconds by part, with `other` for what is in none; they add up to it."""
    parts = {part: spent.get(part, 0.0) for part in PARTS}
    return parts | {"other": sum(spent.values()) - sum(parts.values())}


def rank_summary(
    recorded: Sequence[StepTime],
    plain: Sequence[StepTime],
    made: Recording,
    peak: tuple[float | None, str],
    memory: tuple[int, str],
    *,
    recomputes: bool,
) -> dict[str, Any]:
    """Return one rank's part of summary.json.

    Args:
        recorded: the steps of the interval, at least one.
        plain: steps before it, which no profiler slowed down: throughput is theirs, if there are
            any.
        made: what the tool has written.
        peak: the FLOP/s of matrix products on this device, or why they are not known.
        memory: the peak in bytes, and of what.
        recomputes: with gradient checkpointing, the backward pass repeats forward passes, which no
            MFU counts as work.
    """
    basis = plain or recorded
    tokens = median(one.tokens / one.seconds for one in basis)
    samples = median(one.samples / one.seconds for one in basis)
    done = None if made.flops is None else made.flops / sum(one.tokens for one in recorded) * tokens
    return {
        "steps": [
            {
                "step": one.step,
                "seconds": one.seconds,
                "tokens": one.tokens,
                "samples": one.samples,
                "split": split_step(one.spent),
            }
            for one in recorded
        ],
        "split": {
            part: sum(split_step(one.spent)[part] for one in recorded) for part in (*PARTS, "other")
        },
        "seconds_a_step": median(one.seconds for one in recorded),
        "seconds_a_step_before": median(one.seconds for one in plain) if plain else None,
        "speeds_are_of": (
            "steps before the interval, which nothing recorded"
            if plain
            else "the recorded steps, which recording slows down"
        ),
        "tokens_per_second": tokens,
        "samples_per_second": samples,
        "flops_a_step": None if made.flops is None else made.flops / len(recorded),
        "flops_per_second": done,
        "peak_flops_per_second": peak[0],
        **_utilisation(done, peak, recomputes=recomputes),
        "peak_memory_bytes": memory[0],
        "peak_memory_is": memory[1],
        "memory": [list(point) for point in made.memory],
        "memory_is": made.memory_of,
        "kernels": [dict(row) for row in made.kernels[:_SHOWN]],
        "left_out_of_trace": made.left_out,
    }


def _utilisation(
    done: float | None, peak: tuple[float | None, str], *, recomputes: bool
) -> dict[str, Any]:
    """Return model and hardware FLOPs utilization, or why they are not known; never 0 for that.

    Defined in PaLM, arXiv 2204.02311, appendix B.
    """
    hfu = done / peak[0] if done and peak[0] else None
    if done is None:
        why = "the tool does not count FLOPs, or profiler.record.flops is false"
    elif peak[0] is None:
        why = peak[1]
    elif not done:
        why = "no operation was met of which the FLOPs are known"
    else:
        twice = "model.gradient_checkpointing computes forward passes twice: hfu counts both"
        why = twice if recomputes else ""
    return {"mfu": None if why else hfu, "mfu_why": why, "hfu": hfu}


def merge_interval(
    before: Mapping[str, Any] | None, interval: Mapping[str, Any], *, alone: bool = False
) -> dict[str, Any]:
    """Return summary.json with one more interval.

    It replaces an interval of the same steps; with `alone`, it keeps the other ranks' parts of it.
    """
    known = (before or {}).get("intervals", [])
    others = [one for one in known if one.get("steps") != interval["steps"]]
    ranks = [one["ranks"] for one in known if alone and one.get("steps") == interval["steps"]]
    united = {rank: summary for one in (*ranks, interval["ranks"]) for rank, summary in one.items()}
    return {
        "version": VERSION,
        "intervals": [
            *others,
            {**interval, "ranks": dict(sorted(united.items(), key=lambda item: int(item[0])))},
        ],
    }


def summary_line(steps: Sequence[int], ranks: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one line about the first rank's steps: their parts, throughput and MFU."""
    of = next(iter(ranks.values()))
    seconds = sum(of["split"].values()) or 1.0
    shares = {part: value / seconds for part, value in of["split"].items()}
    parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.005)
    mfu = f"MFU {of['mfu']:.1%}" if of["mfu"] is not None else "MFU not known"
    return (
        f"profile of steps {steps[0]} to {steps[-1]}: {parts}; {of['tokens_per_second']:,.0f}"
        f" tokens/s, {mfu}"
    )
