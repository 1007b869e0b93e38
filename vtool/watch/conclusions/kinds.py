"""The kinds of micro-batches that were seen: what holds for one need not hold for another."""

from vtool.watch.conclusions.learnt import read_micros
from vtool.watch.facts import Facts

OTHER = "other"


def kinds_seen(facts: Facts) -> set[str | None]:
    """Return the kinds of the micro-batches that were read: plain, padded, packed, or both.

    None among them: of some, the ids were not seen.
    """
    return {micro.fact["batch"] for micro in read_micros(facts)}


def micro_batches_of(kind: str) -> str:
    """Return micro-batches of a kind, in words."""
    if kind == OTHER:
        return "micro-batches with a mask that does not show their texts"
    return f"{kind} micro-batches"
