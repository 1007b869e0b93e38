"""Factors of single ranks in a gradient: each rank clips what it has before ranks are reduced."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vtool.watch.conclusions.engine import GradientChange
from vtool.watch.facts import Facts

_LEAST = 1e-3
"""The least difference of factors that counts."""
_EACH = 4
"""Coordinates for each rank, at least."""


@dataclass(frozen=True, slots=True)
class ClippedRanks:
    """A step whose gradient is the sum of the ranks', each multiplied by a factor of its own."""

    step: int
    factors: tuple[float, ...]
    """Each rank's factor in the mean over ranks."""

    def __str__(self) -> str:
        named = [f"{factor:.4g} on rank {rank}" for rank, factor in enumerate(self.factors[:4])]
        rest = " and so on" if len(self.factors) > 4 else ""
        how = (
            "those of a rank are not in it"
            if min(map(abs, self.factors)) < _LEAST
            else "as where each rank clips by the norm of its own, before ranks are reduced"
        )
        return (
            f"in step {self.step + 1} the final norm's gradient is the sum of what the ranks left,"
            f" each multiplied by another factor ({', '.join(named)}{rest}): {how}"
        )


def clipped_ranks(facts: Facts, step: int, engine: GradientChange) -> ClippedRanks | None:
    """Return the factors of the ranks, where these explain a gradient that no single one does."""
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    arrived.sort(key=lambda one: int(one["rank"]))
    if len(arrived) < 2 or any(one["sharded"] for one in arrived):
        return None
    theirs, each = arrived[0]["norm_gradient"], [one["norm_sum"] for one in arrived]
    if not theirs or not all(each) or None in theirs or len(theirs) < _EACH * len(each):
        return None
    factors = _solve(each, theirs)
    if factors is None:
        return None
    rest = [
        now - sum(f * one[at] for f, one in zip(factors, each, strict=True))
        for at, now in enumerate(theirs)
    ]
    if math.hypot(*rest) > engine.tolerance * math.hypot(*theirs):
        return None
    if max(factors) - min(factors) <= _LEAST * max(map(abs, factors)):
        return None
    return ClippedRanks(step, tuple(factor * len(each) for factor in factors))


def _solve(vectors: Sequence[Sequence[float]], target: Sequence[float]) -> list[float] | None:
    """Return the factors of vectors whose sum is nearest to a target; None where many are."""
    rows = [
        [_product(one, other) for other in vectors] + [_product(one, target)] for one in vectors
    ]
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        if abs(rows[at][at]) <= 1e-9 * _product(vectors[pivot], vectors[pivot]):
            return None
        rows[at] = [value / rows[at][at] for value in rows[at]]
        for row in range(size):
            if row != at:
                by = rows[row][at]
                rows[row] = [a - by * b for a, b in zip(rows[row], rows[at], strict=True)]
    return [row[-1] for row in rows]


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
