"""Batches that come again in every step, while the data has other rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact

EVERY_STEP = Rule(
    name="same-batch-every-step",
    code="VT954",
    summary="Every step is made with the same rows, or a few batches come in turn again and again.",
    why=(
        "The loss falls, as it does where a model learns, and the run learns these rows by heart:"
        " a batch taken once before the loop, an iterator made anew in each step, a sampler that"
        " is seeded anew, or a flag for debugging that was left on."
    ),
    bad="for step in range(steps): batch = next(iter(loader))",
    good="for batch in loader",
    fix=(
        "Look at where the loop takes its batch. If one batch is learnt by heart on purpose, as a"
        " test that a model can learn, nothing is wrong."
    ),
    severity="warning",
)
_LEAST = 4
"""The steps of which it is said, at least."""
_LEAST_JUDGED = 9
"""The steps for a policy, at least: it makes some with the rows of one generation."""
_MOST = 8
"""Batches that come in turn."""
_MOST_OF_DATA = 2
"""Several batches in turn of half the data, or more: an epoch that leaves out some rows."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The batches of one rank that come in turn, over all steps."""

    rank: int
    batches: int
    steps: int


def _batches(lines: Sequence[Fact]) -> list[tuple[tuple[str, int], ...]]:
    """Return the rows of each step, from the first to the last; what comes twice, as often."""
    steps: dict[int, Counter[str]] = {}
    for one in lines:
        steps.setdefault(int(one["step"]), Counter()).update(one["rows"])
    order = sorted(steps)
    if len(order) > 1 and steps[order[-1]] < steps[order[-2]]:
        order.pop()  # the run ended within it
    return [tuple(sorted(steps[step].items())) for step in order]


def _cycle(rank: int, batches: list[tuple[tuple[str, int], ...]]) -> Cycle | None:
    for size in range(1, min(_MOST, len(batches) // 2) + 1):
        if all(batch == batches[at % size] for at, batch in enumerate(batches)):
            return Cycle(rank, size, len(batches))
    return None


def _data_rows(facts: Facts) -> tuple[int | None, int]:
    """Return how many rows the smallest data set has, and how many an epoch may leave out."""
    loaders = [one for line in facts.of("rows") for one in line.get("data") or ()]
    sizes = {int(one["rows"]): one for one in loaders if one["rows"]}
    if not sizes:
        return None, 0
    rows = min(sizes)
    batch = int(sizes[rows]["batch"] or 1) * facts.world
    return rows, batch - 1 if sizes[rows]["drop_last"] else 0


def _shown(facts: Facts) -> int:
    """Return how many different rows of the data were shown: packed ones are counted once."""
    texts: set[str] = set()
    rows: set[tuple[str, ...]] = set()
    for line in facts.of("rows"):
        by_row: dict[int, list[str]] = {}
        for digest, row in zip(line["rows"], line.get("row_of") or (), strict=False):
            by_row.setdefault(int(row), []).append(digest)
        rows |= {tuple(one) for one in by_row.values()}
        texts |= set(line["rows"])
    return max(len(texts), len(rows))


def same_batches(facts: Facts) -> Cycle | None:
    """Return the batches that come in turn while the data has more rows, or None.

    Where the length of the data is not known, several batches in turn may be its epochs; one batch
    in every step may be too, but is too little to train on.
    """
    of_ranks = {
        rank: _batches([one for one in facts.of("rows") if int(one["rank"]) == rank])
        for rank in facts.ranks
    }
    cycles = [_cycle(rank, batches) for rank, batches in of_ranks.items()]
    found = next((one for one in cycles if one is not None), None)
    least = _LEAST_JUDGED if facts.is_judged else _LEAST
    if found is None or found.steps < least:
        return None
    data, left_out = _data_rows(facts)
    if data is None:
        return found if found.batches == 1 else None
    shown = _shown(facts) * (1 if found.batches == 1 else _MOST_OF_DATA)
    return None if shown >= data - left_out else found


def _same_within_steps(facts: Facts) -> str | None:
    """Look for steps whose micro-batches all have the same rows."""
    steps: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for line in facts.of("rows"):
        place = int(line["step"]), int(line["rank"])
        steps.setdefault(place, []).append(tuple(sorted(line["rows"])))
    counts = {len(batches) for batches in steps.values()}
    if len({step for step, _ in steps}) < _LEAST or min(counts) < 2 or facts.is_judged:
        return None
    if any(len(set(batches)) > 1 for batches in steps.values()):
        return None
    return (
        f"in each of {len({step for step, _ in steps})} steps all micro-batches have the same rows"
    )


def _same(facts: Facts) -> CheckOutcome:
    if not facts.of("rows"):
        return CheckOutcome(not_run=facts.skipped("ledger") or "no row was seen")
    least = _LEAST_JUDGED if facts.is_judged else _LEAST
    steps = min(
        len({int(one["step"]) for one in facts.of("rows") if int(one["rank"]) == rank})
        for rank in facts.ranks
    )
    if within := _same_within_steps(facts):
        return CheckOutcome((found(EVERY_STEP, within),))
    if (one := same_batches(facts)) is None:
        few = f"it takes {least} steps, and the run had {steps}" if steps < least else None
        return CheckOutcome(not_run=few, looked_at={"steps": steps, "rows": _shown(facts)})
    where = f" of rank {one.rank}" if len(facts.ranks) > 1 else ""
    what = "all have the same rows" if one.batches == 1 else f"have {one.batches} batches in turn"
    data, _ = _data_rows(facts)
    known = f", of a data set of {data}" if data is not None else ""
    message = f"{one.steps} steps{where} {what}: {_shown(facts)} different ones{known}"
    return CheckOutcome((found(EVERY_STEP, message),))


CHECKS = (WatchCheck(EVERY_STEP, "ledger", _same, {"steps": _LEAST, "rows": 1}),)
