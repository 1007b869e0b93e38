"""The engine's part: from what the micro-batches left to the gradient that the optimizer gets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vtool.watch.facts import Facts
from vtool.watch.micro_pass import FLOAT32_ROUNDING, Fact

BFLOAT16_ROUNDING = 2.0**-8
"""A rounding to bfloat16, with which DDP's compression hooks and some engines add up gradients."""


@dataclass(frozen=True, slots=True)
class GradientChange:
    """The change of gradients on their way to the optimizer: a factor, and what is left."""

    factor: float
    misfit: float
    tolerance: float
    by_value: bool
    """Several coordinates have the greatest value: elements were clipped one by one."""
    noise: float = 0.0
    """The relative error of one micro-batch's gradient by the arithmetic in use."""


def engine_of(facts: Facts, step: int, inner: bool = False) -> GradientChange | None:
    """Return the factor between the micro-batches' gradient and the one that arrived.

    Over all ranks that have rows of their own; None where it could not be measured.

    Args:
        facts: of one model.
        step: the number of the step.
        inner: of the norm within the last layer, in place of the final norm.
    """
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    coarse = any("16" in str(one["reduced_in"]) for one in arrived)
    if inner:
        arrived = [one["inner"] for one in arrived if one["inner"]]
    if facts.not_data_parallel or not arrived or untrained_norm(facts):
        return None
    world = facts.world
    units = [micro.unit for micro in facts.micros if micro.step == step]
    tokens = sum(micro.supervised for micro in facts.micros if micro.step == step)
    unit = max(units, default=FLOAT32_ROUNDING)
    tolerance = min(0.05, 16 * unit * math.sqrt(max(tokens, 1)))
    one = arrived[0]
    if coarse:  # passes and ranks are added up in 16 bits
        tolerance = max(tolerance, min(0.05, 2 * BFLOAT16_ROUNDING * math.sqrt(max(len(units), 1))))
    theirs, ours = _vectors(arrived)
    if not theirs and world == 1 and one["engine_factor"] is not None:
        misfit = float(one["engine_misfit"])
        return GradientChange(
            float(one["engine_factor"]), misfit, tolerance, False, noise=16 * unit
        )
    if not theirs or len(arrived) < world:
        return None
    square = sum(value * value for value in ours)
    size = math.sqrt(sum(value * value for value in theirs))
    if not square or not size:
        return None
    factor = sum(a * b for a, b in zip(theirs, ours, strict=True)) / square
    rest = sum((a - factor * b) ** 2 for a, b in zip(theirs, ours, strict=True))
    most = max(map(abs, theirs))
    by_value = sum(abs(abs(value) - most) <= most * 1e-6 for value in theirs) > 2
    return GradientChange(factor, math.sqrt(rest) / size, tolerance, by_value, noise=16 * unit)


def norm_of(facts: Facts, step: int) -> float | None:
    """Return the size of the gradient that the optimizer got, over the shards of all ranks."""
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    norms = [float(one["norm"]) for one in arrived]
    if not norms or not all(norms):
        return None
    shards = any(one["sharded"] for one in arrived)
    return math.hypot(*norms) if shards else norms[0]


def _vectors(arrived: Sequence[Fact]) -> tuple[list[float], list[float]]:
    """Return the final norm's gradient that arrived, and the sum of what the ranks left."""
    sums = [one["norm_sum"] for one in arrived]
    gradients = [one["norm_gradient"] for one in arrived]
    if any(value is None for value in sums) or not any(gradients):
        return [], []
    ours = [sum(float(v or 0) for v in values) for values in zip(*sums, strict=True)]
    known: dict[int, float] = {}
    for gradient in gradients:
        for at, value in enumerate(gradient or ()):
            if value is not None:
                known.setdefault(at, float(value))
    at_all = sorted(at for at in known if at < len(ours))
    return [known[at] for at in at_all], [ours[at] for at in at_all]


def untrained_norm(facts: Facts) -> str | None:
    """Return the name of the final norm's weight, where no optimizer has it."""
    lost = [str(name) for one in facts.of("model") for name in one["in_no_group"]]
    norm = str(facts.model["norm"] or "no norm")
    if facts.owns_nothing and facts.weights_move is False:
        return f"{norm}.weight"
    return next((name for name in lost if f".{name}".endswith(f".{norm}.weight")), None)
