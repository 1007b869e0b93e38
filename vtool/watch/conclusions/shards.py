"""Factors of single ranks' shards of one gradient: clipping must take the norm over all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vtool.watch.conclusions.engine import engine_of
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact

_LEAST, _LEAST_OF_COARSE, _DEVIATIONS = 2e-3, 2e-2, 8.0
"""The least difference of factors that counts, relative and in deviations of what is measured."""
_COORDINATES = 4
HELP = (
    "take the norm over all shards: torch.nn.utils.clip_grad_norm_ does so for DTensors; for"
    " p.grad.to_local(), all-reduce the sum of squares over the ranks that share the shards before"
    " the root"
)


@dataclass(frozen=True, slots=True)
class _Shard:
    rank: int
    factor: float
    misfit: float
    error: float


def shards_apart(facts: Facts) -> str | None:
    """Say how ranks' shards of one gradient are scaled apart, where each has one factor."""
    for step, arrived in facts.by_step("arrived"):
        engine = engine_of(facts, step)
        if engine is None or engine.by_value:
            continue
        shards = _shards(arrived)
        if len(shards) < 2 or any(one.misfit > engine.tolerance for one in shards):
            continue
        low = min(shards, key=lambda one: one.factor)
        high = max(shards, key=lambda one: one.factor)
        apart, size = high.factor - low.factor, max(abs(low.factor), abs(high.factor))
        error = math.hypot(low.error, high.error)
        coarse = engine.tolerance > _LEAST and not _one_norm(arrived)
        least = (_LEAST_OF_COARSE if coarse else _LEAST) * size
        if apart > max(least, _DEVIATIONS * error):
            return _message(facts, step, arrived, shards)
    return None


def _message(facts: Facts, step: int, arrived: Sequence[Fact], shards: Sequence[_Shard]) -> str:
    factors = [f"{one.factor * facts.world:.4g} on rank {one.rank}" for one in shards[:4]]
    cause = (
        f"the shards of each rank have the norm {arrived[0]['norm']:.4g}: each rank clips by the"
        " norm of its own shards"
        if _one_norm(arrived)
        else "as it is where a rank clips by the norm of its own shards"
    )
    rest = " and so on" if len(shards) > 4 else ""
    return (
        f"in step {step + 1} each rank's shard of the gradient is multiplied by another factor"
        f" ({', '.join(factors)}{rest}), {cause}"
    )


def _one_norm(arrived: Sequence[Fact]) -> bool:
    """Return whether shards of all ranks have one norm, as each has that is clipped by its own."""
    norms = [float(one["norm"] or 0) for one in arrived]
    return min(norms) > 0 and max(norms) / min(norms) - 1 < 1e-3


def _shards(arrived: Sequence[Fact]) -> list[_Shard]:
    """Return the factor of each rank's shard of the final norm's gradient; none if it has whole."""
    sums = [one["norm_sum"] for one in arrived]
    if any(value is None for value in sums):
        return []
    ours = [sum(float(v or 0) for v in values) for values in zip(*sums, strict=True)]
    found = []
    for one in arrived:
        gradient = list(one["norm_gradient"] or ())
        pairs = [(float(a), b) for a, b in zip(gradient, ours, strict=False) if a is not None]
        if len(pairs) == len(ours) or len(pairs) < _COORDINATES:
            continue
        square = sum(b * b for _, b in pairs)
        size = math.sqrt(sum(a * a for a, _ in pairs))
        if not square or not size:
            continue
        factor = sum(a * b for a, b in pairs) / square
        rest = math.sqrt(sum((a - factor * b) ** 2 for a, b in pairs))
        error = rest / math.sqrt(square * (len(pairs) - 1))
        found.append(_Shard(int(one["rank"]), factor, rest / size, error))
    return found
