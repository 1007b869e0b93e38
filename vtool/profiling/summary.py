"""summary.json:

what the recorded steps cost, and what came out of them. Pure functions of what was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vtool.profiling.marks import PARTS
from vtool.profiling.tools import Recorded

VERSION = 1
SHOWN = 15
"""Operations in summary.json; the tables have more."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of this rank. `tokens` and `samples` are those of all ranks."""

    step: int
    seconds: float
    tokens: int
    samples: int
    spent: Mapping[str, float]
    """Seconds by role; nothing of a step that was not recorded."""


def split(spent: Mapping[str, float]) -> dict[str, float]:
    """A step's seconds by part, and `other`, what is in none of them. They add up to the step."""
    parts = {part: spent.get(part, 0.0) for part in PARTS}
    return parts | {"other": sum(spent.values()) - sum(parts.values())}


def rank_summary(
    recorded: Sequence[StepTime],
    plain: Sequence[StepTime],
    made: Recorded,
    peak: tuple[float | None, str],
    memory: tuple[int, str],
    *,
    recomputes: bool,
) -> dict[str, Any]:
    """One rank's part of summary.json.

    Args:
        recorded: the steps of the interval, at least one.
        plain: steps before it, as they are without a profiler: speeds are theirs, where there are
            any.
        made: what the tool has written.
        peak: the matrix products' FLOP/s on this device, or why they are not known.
        memory: the peak in bytes, and of what.
        recomputes: whether the backward pass computes forward passes again, which no MFU counts as
            work.
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
                "split": split(one.spent),
            }
            for one in recorded
        ],
        "split": {
            part: (
                sum(one.spent.get(part, 0.0) for one in recorded)
                if part in PARTS
                else sum(split(one.spent)["other"] for one in recorded)
            )
            for part in (*PARTS, "other")
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
        "kernels": [dict(row) for row in made.kernels[:SHOWN]],
        "left_out_of_trace": made.left_out,
    }


def _utilisation(
    done: float | None, peak: tuple[float | None, str], *, recomputes: bool
) -> dict[str, Any]:
    """Model and hardware FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B), or why there is
    none; never 0 for that.
    """
    if done is None or peak[0] is None:
        why = (
            "the tool does not count FLOPs, or profiler.record.flops is false"
            if done is None
            else peak[1]
        )
        return {"mfu": None, "mfu_why": why, "hfu": None}
    if not done:
        return {
            "mfu": None,
            "mfu_why": "no operation was met of which the FLOPs are known",
            "hfu": None,
        }
    hfu = done / peak[0]
    if recomputes:
        return {
            "mfu": None,
            "mfu_why": (
                "model.gradient_checkpointing computes forward passes twice: hfu counts both"
            ),
            "hfu": hfu,
        }
    return {"mfu": hfu, "mfu_why": "", "hfu": hfu}


def merged(
    before: Mapping[str, Any] | None, interval: Mapping[str, Any], *, alone: bool = False
) -> dict[str, Any]:
    """summary.json with one more interval.

    One of the same steps is replaced; `alone`: but for other ranks, which have added themselves.
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


def in_words(steps: Sequence[int], ranks: Mapping[str, Mapping[str, Any]]) -> str:
    """One line of what the first rank's steps are made of."""
    of = next(iter(ranks.values()))
    whole = sum(of["split"].values()) or 1.0
    parts = ", ".join(
        f"{part} {value / whole:.0%}"
        for part, value in of["split"].items()
        if value / whole >= 0.005
    )
    mfu = f"MFU {of['mfu']:.1%}" if of["mfu"] is not None else "MFU not known"
    return (
        f"profile of steps {steps[0]} to {steps[-1]}: {parts}; {of['tokens_per_second']:,.0f}"
        f" tokens/s, {mfu}"
    )
