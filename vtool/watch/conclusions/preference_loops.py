"""Preferences of a loop without a trainer that is known: pairs by their prompts and signs."""

from collections.abc import Iterator
from statistics import median

from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, MicroPass

_Pair = tuple[Fact, Fact]


def measured_pairs(facts: Facts) -> dict[str, float | str]:
    """Return the β that the first step shows, where each prompt has an answer up, and one down.

    Both may be in one pass, in any order, or in a pass for each side. Nothing is returned where
    some prompt has not as many answers up as down.
    """
    steps: dict[tuple[int, int], list[MicroPass]] = {}
    for micro in facts.micros:
        if micro.is_read:
            steps.setdefault((micro.step, micro.rank), []).append(micro)
    found = {place: list(_pairs_of(micros)) for place, micros in steps.items()}
    if not found or not all(found.values()):
        return {}
    pairs = found[min(found)]
    sizes = [abs(float(row["median"])) for pair in pairs for row in pair]
    if max(sizes) > (1 + 1e-3) * min(sizes):
        return {"pairs": len(pairs)}
    return {"pairs": len(pairs), "β, if this is DPO": f"{2 * median(sizes) * len(pairs):.6g}"}


def _pairs_of(micros: list[MicroPass]) -> Iterator[_Pair]:
    """Yield the pairs of a step; none where not all of its rows are in one."""
    prompts: dict[str, tuple[list[Fact], list[Fact]]] = {}
    for micro in micros:
        halves = {
            int(row): f"{micro.index}, {pair['rows']}"
            for pair in micro.fact["pairs"] or ()
            for row in pair["rows"]
            if int(pair["prefix"]) > 1
        }
        for row in micro.fact["per_row"]:
            key = row.get("prompt") or halves.get(int(row["row"]))  # none: prompts are judged too
            if not key or not row["median"]:
                return
            sides = prompts.setdefault(str(key), ([], []))
            sides[row["median"] < 0].append(row)
    if all(len(up) == len(down) for up, down in prompts.values()):
        for up, down in prompts.values():
            yield from zip(up, down, strict=True)
