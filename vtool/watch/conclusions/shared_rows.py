"""Rows that several ranks are shown, each of which repeats none by itself: shares that overlap."""

import math
from collections.abc import Mapping, Sequence

from vtool.watch.facts import Facts

_CHANCE = 1e-3
"""The chance that it is another epoch, or copies in the data, that no rank is shown twice."""
SHARES_HELP = (
    "give each rank its own rows: DistributedSampler, accelerate's prepare(loader), or"
    " rows[rank::world]; if the same texts are in the data several times, nothing is wrong"
)


def overlapping_shares(facts: Facts, data: int | None, copies: int | None) -> str | None:
    """Say how many rows several ranks were shown before any of them was shown one again.

    Padding at the end of an epoch explains a batch of each rank. In another epoch, as with copies
    in the data, a rank is soon shown one of its own rows again, if rows are drawn at random.

    Args:
        facts: of one model.
        data: rows of the data set, where they are known.
        copies: rows of it that are copies of others, where that is known.
    """
    orders = {rank: _in_order(facts, rank) for rank in facts.ranks}
    world = len(orders)
    batch = max((len(one["rows"]) for one in facts.of("rows")), default=1)
    count = min(_first_repeat(rows) for rows in orders.values())
    different = len({row for rows in orders.values() for row in rows})
    whole = data is not None and data >= different
    if whole and data is not None:
        count = min(count, math.ceil(data / world))
    begun = {rank: rows[:count] for rank, rows in orders.items()}
    shared, on = _shared(begun, 2 * batch)
    if whole and copies is not None:
        most = world * batch + copies
    else:
        most = max(world * batch, math.ceil(math.log(_CHANCE) / math.log((world - 1) / world)))
    if on <= most:
        return None
    return (
        f"of the first {count} rows of each of {world} ranks {shared} were shown to more than one"
        f" rank, and none twice to one: their shares of the data overlap"
    )


def _in_order(facts: Facts, rank: int) -> list[str]:
    ones = [one for one in facts.of("rows") if int(one["rank"]) == rank]
    return [row for one in ones for row in one["rows"]]


def _first_repeat(rows: Sequence[str]) -> int:
    seen: set[str] = set()
    for at, row in enumerate(rows):
        if row in seen:
            return at
        seen.add(row)
    return len(rows)


def _shared(begun: Mapping[int, Sequence[str]], near: int) -> tuple[int, int]:
    """Return the rows that several ranks have, and how often beyond once.

    Copies that lie beside each other come to several ranks at about the same place.
    """
    places: dict[str, list[int]] = {}
    for rows in begun.values():
        for at, row in enumerate(rows):
            places.setdefault(row, []).append(at)
    apart = [at for at in places.values() if len(at) > 1 and max(at) - min(at) > near]
    return len(apart), sum(len(at) - 1 for at in apart)
