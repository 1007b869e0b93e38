"""The profile of a run, from its `profile/summary.json`.

The parts of a step, throughput, memory, and the operations that took longest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtool.contents import read_small_json
from vtool.report.run_files import number_in
from vtool.report.views import Stat
from vtool.report.words import in_words, percent

_PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint", "other")
_SHOWN = 8
"""Ranks that are shown at once; the page folds away those of many."""
_WIDTH, _HEIGHT = 640, 150
"""The box of the memory's line."""


def read_profile(folder: Path) -> dict[str, Any] | None:
    """Return a run's profiles, as `profile.html.j2` shows them; None where it has none."""
    path = folder / "profile" / "summary.json"
    try:
        found = read_small_json(path)
        return {"intervals": [_interval(one) for one in found["intervals"]], "damaged": False}
    except FileNotFoundError:
        return None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OSError,
        RecursionError,
    ):
        return {"intervals": [], "damaged": True}


def _interval(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return one profile; its operations and its memory are the first rank's."""
    ranks: Mapping[str, Mapping[str, Any]] = found["ranks"]
    first_rank, first = next(iter(ranks.items()))
    begin, end = found["steps"]
    curve = [(float(seconds), float(level)) for seconds, level in first["memory"]]
    notes = []
    if found["asked"] != found["steps"]:
        notes.append(f"Asked for were steps {found['asked'][0]} to {found['asked'][1]}.")
    if capped := [
        f"rank {rank}: {one['left_out_of_trace']:,} operations"
        for rank, one in ranks.items()
        if one["left_out_of_trace"]
    ]:
        notes.append(f"Left out of the trace for its size, the shortest ones: {'; '.join(capped)}.")
    bars = [_bar(f"rank {rank}", one) for rank, one in ranks.items()]
    return {
        "title": f"Step {begin}" if begin == end else f"Steps {begin} to {end}",
        "about": (
            f"recorded by {found['tool']} on {_recorded_ranks(ranks, int(found['world']))},"
            f" {found['device']}, {found['dtype']}"
        ),
        "stats": _stats(first, ranks),
        "bars": bars[:_SHOWN],
        "folded": bars[_SHOWN:],
        "kernels": _kernels(first["kernels"]),
        "kernels_of": f"rank {first_rank}",
        "memory": _line(curve) if len(curve) > 1 else None,
        "memory_seconds": f"{max((at for at, _ in curve), default=0.0):.3g} s",
        "memory_peak": _mebibytes(max(level for _, level in curve)) if curve else "",
        "memory_of": str(first["memory_is"]),
        "files": [name for one in list(ranks.values())[:_SHOWN] for name in one["files"]],
        "notes": notes,
    }


def _stats(first: Mapping[str, Any], ranks: Mapping[str, Mapping[str, Any]]) -> list[Stat]:
    recorded, plain = number_in(first, "seconds_a_step"), number_in(first, "seconds_a_step_before")
    slower = f"{1000 * plain:.3g} ms before, unrecorded" if plain else "while it is recorded"
    mfu, peak = number_in(first, "mfu"), number_in(first, "peak_flops_per_second")
    against = f"of {peak / 1e9:,.0f} GFLOP/s, the best matrix product here" if peak else ""
    of = str(first["speeds_are_of"])
    memory = max(number_in(one, "peak_memory_bytes") or 0 for one in ranks.values())
    return [
        Stat(
            "Time of a step, median",
            None if recorded is None else f"{1000 * recorded:.3g} ms",
            slower,
        ),
        Stat("Tokens a second", in_words(number_in(first, "tokens_per_second")), of),
        Stat("Samples a second", in_words(number_in(first, "samples_per_second"))),
        Stat(
            "MFU",
            None if mfu is None else percent(mfu),
            against if mfu is not None else str(first["mfu_why"]),
        ),
        Stat("Peak memory", _mebibytes(memory), str(first["peak_memory_is"])),
    ]


def _bar(name: str, one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's step: its parts, each with its share and its milliseconds a step."""
    split = {part: float(one["split"].get(part, 0.0)) for part in _PARTS}
    whole, steps = sum(split.values()) or 1.0, len(one["steps"])
    return {
        "name": name,
        "milliseconds": f"{1000 * sum(split.values()) / steps:.3g} ms a step, mean of {steps}",
        "parts": [
            (part, value / whole, f"{1000 * value / steps:.3g} ms")
            for part, value in split.items()
            if value / whole >= 0.0005
        ],
    }


def _recorded_ranks(ranks: Mapping[str, object], world: int) -> str:
    """Return which ranks were recorded, in words."""
    if len(ranks) == world:
        return f"{world} rank{'s' * (world > 1)}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} of {world}"


def _kernels(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str, str, str, float], ...]:
    """Return name, calls, own milliseconds, share in words, and share of the longest's."""
    longest = max((float(row["share"]) for row in rows), default=0.0) or 1.0
    return tuple(
        (
            str(row["name"]) + (f" {row['shapes']}" if row.get("shapes") else ""),
            f"{int(row['calls']):,}",
            f"{float(row['self_us']) / 1000:,.1f}",
            f"{100 * float(row['share']):.1f} %",
            float(row["share"]) / longest,
        )
        for row in rows
    )


def _line(curve: Sequence[tuple[float, float]]) -> str:
    """Return the curve as the points of an SVG polyline."""
    seconds = max(at for at, _ in curve) or 1.0
    low, high = min(0.0, *(level for _, level in curve)), max(level for _, level in curve)
    span = (high - low) or 1.0
    return " ".join(
        f"{_WIDTH * at / seconds:.1f},{_HEIGHT * (1 - (level - low) / span):.1f}"
        for at, level in curve
    )


def _mebibytes(value: float) -> str:
    return f"{in_words(round(value / 2**20))} MiB"
