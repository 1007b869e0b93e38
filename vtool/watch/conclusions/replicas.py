"""Tensors that ranks hold alike: gradients and weights that are to be the same on each rank."""

from collections.abc import Sequence

from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null


def not_comparable(facts: Facts, kind: str, what: str) -> str | None:
    """Return why ranks are not to be compared with each other, or None."""
    if facts.not_data_parallel:
        return f"ranks share the model ({facts.not_data_parallel})"
    if _are_shards(facts.of(kind)) and not whole_on_ranks(facts):
        return f"{what} are shards: each rank has others"
    return None


def _are_shards(ones: Sequence[Fact]) -> bool:
    return any(not_null(one, "sharded") for one in ones)


def whole_on_ranks(facts: Facts) -> set[str]:
    """Return the tensors that each rank has whole, beside shards of others, with equal weights.

    Experts that a rank alone has are others on each rank, at the first look too.
    """
    first = next((ones for _, ones in facts.by_step("arrived")), ())
    seen = [one["whole"] for one in first]
    if len({int(one["rank"]) for one in first}) < facts.world or not all(seen):
        return set()
    names = set.intersection(*map(set, seen))
    return {name for name in names if len({each[name] for each in seen}) == 1}


def shards_beside(facts: Facts, ones: Sequence[Fact]) -> str | None:
    """Return how many tensors are shards, where others are whole; None where all are."""
    if not _are_shards(ones):
        return None
    of = max(len(one["tensors"]) for one in ones)
    whole = len(whole_on_ranks(facts))
    return f"{of - whole} of {of} tensors are shards: each rank has others; {whole} are whole"


def names_apart(facts: Facts, ones: Sequence[Fact]) -> list[str] | None:
    """Return the tensors whose digests differ between ranks; None where all are the same."""
    if not _are_shards(ones):
        if len({not_null(one, "digest") for one in ones}) < 2:
            return None
        names = set(ones[0]["tensors"])
    else:
        names = whole_on_ranks(facts)
    seen = [one["tensors"] for one in ones]
    apart = [n for n in seen[0] if n in names and any(s.get(n) != seen[0][n] for s in seen)]
    return apart if apart or not _are_shards(ones) else None


def gradients_differ(facts: Facts) -> bool:
    """Return whether ranks that hold the same weights have different gradients in a step."""
    if facts.not_data_parallel or _are_shards(facts.of("arrived")):
        return False
    return any(
        len({not_null(one, "digest") for one in ones}) > 1 for _, ones in facts.by_step("arrived")
    )
