"""Gradients of each layer between the last backward pass and the step: one factor for all."""

import math
from dataclasses import dataclass, replace
from statistics import median

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.conclusions.engine import GradientChange, engine_of
from vtool.watch.conclusions.replicas import gradients_differ
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import FLOAT32_ROUNDING, not_null

APART = Rule(
    name="layers-scaled-apart",
    code="VT931",
    summary="Behind the backward pass, gradients of some layers are multiplied, of others not.",
    why=(
        "Those layers learn at another rate, or, where the optimizer divides by the gradient's"
        " size as AdamW does, only their share of the clipped norm and of its eps changes: hardly"
        " anybody means that."
    ),
    bad="for p in model.layers[0].parameters(): p.grad.mul_(0.5)",
    good="a group of the optimizer with a learning rate of its own",
    fix=(
        "Look at what touches .grad between backward() and step(): hooks, a reduction that leaves"
        " out a part, a division made twice. If it is meant, nothing is wrong."
    ),
    severity="warning",
)
_LEAST = 0.01
"""A factor that is off by less is none that anybody would write."""
_VARIED = 0.02
"""Sizes of gradients must differ by as much over steps: clipping keeps a size, not a factor."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The way of one tensor's gradient in one step."""

    factor: float
    size: float
    tolerance: float


def _tolerance(dtype: str) -> float:
    unit = 2.0**-9 if "bfloat16" in dtype else 2.0**-12 if "float16" in dtype else FLOAT32_ROUNDING
    return max(1e-3, 8 * unit)


def _layers(facts: Facts, step: int) -> dict[str, _Layer]:
    """Return the factor of each tensor, where what arrived is a multiple of what was left."""
    arrived = [one for one in facts.of("arrived") if int(one["step"]) == step]
    if len({int(one["rank"]) for one in arrived}) < facts.world:
        return {}
    layers = [one["layers"] or {} for one in arrived]
    known = {}
    for name in set.intersection(*(set(each) for each in layers)):
        tensors = [each[name] for each in layers]
        lefts = zip(*(tensor["left"] for tensor in tensors), strict=True)
        left = [sum(map(_number, values)) for values in lefts]
        now = [_number(value) for value in tensors[0]["arrived"]]
        square, size = sum(x * x for x in left), math.sqrt(sum(x * x for x in now))
        if not square or not size or len(left) != len(now):
            continue
        factor = sum(a * b for a, b in zip(now, left, strict=True)) / square
        rest = math.sqrt(sum((a - factor * b) ** 2 for a, b in zip(now, left, strict=True)))
        tolerance = _tolerance(str(not_null(tensors[0], "dtype")))
        if rest <= tolerance * size:
            known[name] = _Layer(factor, math.sqrt(square), tolerance)
    return known


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


@dataclass(frozen=True, slots=True)
class NormsApart:
    """The factors of the final norm's gradient and of another norm's, where they differ."""

    final: float
    inner: float
    steps: int

    def unchanged(self, world: int) -> float:
        """Return the factor that is nearest to the mean over ranks, which nothing has changed."""
        return min(self.final, self.inner, key=lambda factor: abs(math.log(abs(factor * world))))


def norms_apart(facts: Facts) -> NormsApart | None:
    """Return the factors of two norms' gradients, if these differ alike in each of several steps.

    Clipped part by part they differ too, by another number in each step.
    """
    pairs, allowed = [], _LEAST
    for step, _ in facts.by_step("arrived"):
        final, inner = engine_of(facts, step), engine_of(facts, step, inner=True)
        if final is None or inner is None or not final.factor or not inner.factor:
            continue
        if final.misfit > final.tolerance or inner.misfit > inner.tolerance:
            continue
        allowed = max(allowed, 4 * (final.tolerance + inner.tolerance))
        pairs.append((final.factor, inner.factor))
    ratios = [final / inner for final, inner in pairs]
    if len(ratios) < 2 or any(abs(ratio - 1) <= allowed for ratio in ratios):
        return None
    if max(ratios) - min(ratios) > _LEAST * max(map(abs, ratios)):
        return None
    return NormsApart(*pairs[0], len(pairs))


def whole_change(facts: Facts, step: int) -> GradientChange | None:
    """Return the change of the whole gradient, by the norms or else by tensors of each layer.

    None where neither was seen: then the loss alone is known, and not what came of it.
    """
    if (engine := engine_of(facts, step)) is not None:
        apart = norms_apart(facts)
        return replace(engine, factor=apart.unchanged(facts.world)) if apart else engine
    if facts.not_data_parallel or not (layers := _layers(facts, step)):
        return None
    tolerance = max(layer.tolerance for layer in layers.values())
    return GradientChange(median(one.factor for one in layers.values()), 0.0, tolerance, False)


def _of_norms(facts: Facts) -> Diagnostic | None:
    """Look for a factor that the final norm's gradient has, and not that of the layer before it."""
    if not (apart := norms_apart(facts)):
        return None
    one = next(one for one in facts.of("arrived") if one["inner"])
    message = (
        f"in each of {apart.steps} steps the gradient of {one['norm_name']}.weight is"
        f" {apart.final:.4g} times what the micro-batches left, and that of"
        f" {one['inner']['norm_name']}.weight {apart.inner:.4g} times"
    )
    return found(APART, message)


def _not_comparable(facts: Facts) -> str | None:
    if facts.not_data_parallel:
        return f"ranks share the model ({facts.not_data_parallel})"
    return "each rank has another gradient" if gradients_differ(facts) else None


def is_scaled_in_part(facts: Facts) -> bool:
    """Return whether some layers' gradients are multiplied behind the backward pass."""
    return bool(_apart(facts).findings)


def _apart(facts: Facts) -> CheckOutcome:
    if why := _not_comparable(facts):
        return CheckOutcome(not_run=why)
    if of_norms := _of_norms(facts):
        return CheckOutcome((of_norms,))
    steps = [_layers(facts, step) for step, _ in facts.by_step("arrived")]
    names = sorted(set.intersection(*map(set, steps))) if steps else []
    if len(names) < 3:
        return CheckOutcome(not_run="gradients of single layers were not seen on their way")
    measured = {"tensors": len(names), "steps": len(steps)}
    usual = [median(step[name].factor for name in names) for step in steps]
    scaled, looked = {}, 0
    for name in names:
        seen = [step[name] for step in steps]
        ratios = [one.factor / each for one, each in zip(seen, usual, strict=True) if each]
        tolerance = max(one.tolerance for one in seen)
        least = max(_LEAST, 4 * tolerance)
        same = max(ratios) - min(ratios) <= tolerance * max(map(abs, ratios))
        sizes = [one.size for one in seen]
        varied = max(sizes) > (1 + max(_VARIED, 4 * tolerance)) * min(sizes)
        enough = len(ratios) > (2 if tolerance > 1e-3 else 1)
        looked += enough and varied
        if enough and same and varied and all(abs(ratio - 1) > least for ratio in ratios):
            scaled[name] = ratios[0]
    if not looked:
        why = "gradients that do not vary over steps cannot distinguish a factor from clipping"
        return CheckOutcome(
            not_run=why if len(steps) > 1 else "it takes two steps", measured=measured
        )
    if not scaled:
        return CheckOutcome(
            not_run=facts.hooked,
            looked_at={"steps": len(steps), "tensors": looked},
            measured=measured,
        )
    first = next(iter(scaled))
    more = f" and {len(scaled) - 1} more" if len(scaled) > 1 else ""
    message = (
        f"in each of {len(steps)} steps, behind the backward pass the gradient of {first}{more} is"
        f" multiplied by {scaled[first]:.4g}, and of {len(names) - len(scaled)} other tensors that"
        " were looked at it is not"
    )
    return CheckOutcome((found(APART, message),), measured=measured)


CHECKS = (WatchCheck(APART, "arrived", _apart, {"steps": 2, "tensors": 1}),)
