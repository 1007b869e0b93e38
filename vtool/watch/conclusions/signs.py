"""The sign with which tokens are learnt: up, as rows are copied, or down, all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.layers import whole_change
from vtool.watch.conclusions.learnt import CERTAIN_OF_EVERY, nothing_read, read_micros
from vtool.watch.conclusions.weights import is_even_by_a_rule
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import MicroPass

UNLEARNT = Rule(
    name="tokens-unlearnt",
    code="VT912",
    summary="Every token of the watched steps is made less likely: the run unlearns its rows.",
    why=(
        "A sign that is wrong in the loss, in the gradients or in the optimizer (maximize) moves"
        " every weight the wrong way. Weights of one size that are a mean, and all negative, are"
        " no advantages and no preference."
    ),
    bad="loss = -cross_entropy(logits, labels), and an optimizer that minimizes",
    good="loss = cross_entropy(logits, labels)",
    fix=(
        "Look for a minus in the loss, for gradients that are negated, and for maximize=True. If"
        " rows are unlearnt on purpose, this says that they are."
    ),
)
WeightSign = Literal[-1, 0, 1]


def _of_weights(micros: Sequence[MicroPass]) -> WeightSign:
    """Return the sign of every measured weight; 0 where both are there, or none is measured."""
    known = [micro for micro in micros if micro.measured]
    if known and all(micro.high < 0 for micro in known):
        return -1
    return 1 if known and all(micro.low > 0 for micro in known) else 0


def is_negated(facts: Facts, step: int) -> bool:
    """Return whether gradients came to the optimizer with the other sign."""
    arrival = whole_change(facts, step)
    return arrival is not None and arrival.misfit <= arrival.tolerance and arrival.factor < 0


def _maximizes(facts: Facts, step: int) -> bool:
    groups = [
        group for one in facts.of("stepped") if int(one["step"]) == step for group in one["groups"]
    ]
    return bool(groups) and all(group.get("maximize") for group in groups)


def is_sign_flipped(facts: Facts, step: int) -> bool:
    """Return whether a negative weight makes a token more likely, and a positive one less."""
    return is_negated(facts, step) != _maximizes(facts, step)


def _why(facts: Facts, step: int, sign: WeightSign) -> str:
    reasons = [
        text
        for text, there in (
            ("their weights in the loss are negative", sign < 0),
            ("gradients come to the optimizer negated", is_negated(facts, step)),
            ("the optimizer maximizes", _maximizes(facts, step)),
        )
        if there
    ]
    return ", and ".join(reasons)


def _mirrored(micro: MicroPass) -> MicroPass:
    """Return a micro-batch with the other sign of every weight."""
    low, middle, most, high = micro.quantiles
    rows = [
        {
            **row,
            "sum": -float(row.get("sum") or 0.0),
            "least": -float(row.get("greatest") or 0.0),
            "greatest": -float(row.get("least") or 0.0),
            "positive": row.get("negative"),
            "negative": row.get("positive"),
        }
        for row in micro.fact.get("per_row") or ()
    ]
    total = -float(micro.fact.get("sum") or 0.0)
    weights = [-high, -middle, -most, -low]
    by_target = {
        token: (count, -weight, single, apart)
        for token, (count, weight, single, apart) in micro.fact["by_target"].items()
    }
    fact = {
        **micro.fact,
        "sum": total,
        "measured_weight": weights,
        "per_row": rows,
        "by_target": by_target,
    }
    return replace(micro, fact=fact)


def _is_a_mean(facts: Facts, micros: Sequence[MicroPass]) -> bool:
    """Return whether sizes of weights are those of one mean over rows that are copied."""
    alike = [_mirrored(micro) if micro.high < 0 else micro for micro in micros]
    if any(not micro.measured for micro in alike) or not is_even_by_a_rule(alike):
        return False
    if facts.world != len({micro.rank for micro in alike}):
        return False
    totals = [micro.total for micro in alike]
    tolerance = max(micro.tolerance for micro in alike) * 2
    return None not in totals and (
        abs(sum(total or 0.0 for total in totals) / facts.world - 1) <= tolerance
    )


def all_negative(facts: Facts) -> CheckOutcome:
    """Look for a run in which every token is pushed down."""
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    micros = read_micros(facts)
    steps = {
        step: [micro for micro in micros if micro.step == step]
        for step in sorted({micro.step for micro in micros})
    }
    signs = {step: _of_weights(each) for step, each in steps.items()}
    if not any(micro.measured for micro in micros):
        return CheckOutcome(not_run=CERTAIN_OF_EVERY)
    directions = {
        step: -sign if is_sign_flipped(facts, step) else sign for step, sign in signs.items()
    }
    measured = {"steps": len(steps), "all up": sum(one > 0 for one in directions.values())}
    looked_at: dict[Unit, int] = {
        "steps": len(steps),
        "tokens": sum(micro.measured for micro in micros),
    }
    if any(one >= 0 for one in directions.values()):
        stepped = {int(one["step"]) for one in facts.of("stepped") if one["groups"]}
        unseen = [one for one in steps if whole_change(facts, one) is None or one not in stepped]
        if unseen:
            why = f"the way of the gradient of step {unseen[0] + 1} to the weights was not seen"
            return CheckOutcome(not_run=why, measured=measured)
        noise = max(micro.tolerance for micro in micros)
        return CheckOutcome(looked_at=looked_at, noise=noise, measured=measured)
    first = next(iter(steps))
    tokens = sum(micro.supervised for micro in micros)
    summary = f"all {tokens} tokens of {len(steps)} steps are made less likely"
    message = f"{summary}: {_why(facts, first, signs[first])}"
    if all(_is_a_mean(facts, each) for each in steps.values()):
        return CheckOutcome((found(UNLEARNT, message),), measured=measured)
    help = "nothing, if these are rows that were judged, and none of them was good"
    note = found(UNLEARNT, message, help=help, severity="note")
    return CheckOutcome((note,), looked_at=looked_at, measured=measured)


CHECKS = (WatchCheck(UNLEARNT, "learnt", all_negative, {"steps": 1, "tokens": 1}, most_noise=0.5),)
