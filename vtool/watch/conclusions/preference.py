"""Losses of preferences: the weight of each pair against β and the trainer's other arguments."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.engine import engine_of
from vtool.watch.conclusions.preference_loops import measured_pairs
from vtool.watch.conclusions.preference_losses import Answer, PreferenceLoss
from vtool.watch.conclusions.preference_reading import (
    Reading,
    are_all,
    divisors,
    read_pairs,
)
from vtool.watch.conclusions.preference_rows import (
    JudgedBatch,
    judged_batches,
    loss_of,
    no_preference,
    unpaired,
)
from vtool.watch.facts import Facts

OFF_SCALE = Rule(
    name="preference-scaled",
    code="VT917",
    summary="The weights of a preference's pairs are not what β and the pairs of the step give.",
    why=(
        "Where the policy is still its reference, each answer token of a DPO pair weighs β/2 over"
        " the pairs of the step. A loss that is not divided by the accumulation weighs k times as"
        " much: it is clipped at every step, and the learning rate means something else (trl#2615,"
        " TRL 0.12 and 0.13: DPO, KTO, CPO, BCO, ORPO)."
    ),
    bad="beta=0.1, and weights of 0.05 for each of 4 pairs in 4 micro-batches",
    good="0.0125: 0.1 / 2 / 4",
    fix=(
        "Divide the loss once by the micro-batches of the step, and give the loss the β of the"
        " arguments. In TRL 0.12 and 0.13, use one micro-batch a step, or a later release."
    ),
)

_NEAR = 0.02
"""The relative error of what becomes of a gradient on its way."""


def _scaled(facts: Facts) -> CheckOutcome:
    if why := no_preference(facts):
        alone = {} if facts.skipped("preference") else measured_pairs(facts)
        return CheckOutcome(not_run=why, measured=alone, applies=bool(alone), is_needed=True)
    loss = loss_of(facts)
    assert loss is not None
    changed = tuple(_changed(facts))
    if loss.unknown:
        return CheckOutcome(changed, not_run=loss.unknown, is_needed=True)
    batches = judged_batches(facts, loss)
    if odd := unpaired(facts, loss, batches):
        return CheckOutcome(changed, not_run=odd, is_needed=True)
    outcome = _against_due(facts, loss, [batch for batch in batches if batch.rows])
    return replace(outcome, findings=(*changed, *outcome.findings))


def _changed(facts: Facts) -> Iterator[Diagnostic]:
    """Look for a trainer whose β is not that of its arguments when it begins."""
    for fact in facts.of("preference")[:1]:
        if int(fact["step"]):
            continue
        for name, value in fact["changed"].items():
            given = fact["arguments"][name]
            message = (
                f"the trainer's {name} is {value:g}, and its arguments have {given:g}: the loss is"
                " that of the trainer's"
            )
            yield found(OFF_SCALE, message, severity="note" if fact["overridden"] else "warning")


def _against_due(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]
) -> CheckOutcome:
    reading = read_pairs(facts, loss, batches)
    if not reading.ratios:
        return CheckOutcome(not_run="no weight of a row could be measured", is_needed=True)
    ratios = reading.ratios
    measured = {
        "times what is due": f"{reading.times:.6g}",
        "β": loss.beta,
        "pairs of a micro-batch": batches[0].size // (2 if loss.is_paired else 1),
        "micro-batches": batches[0].passes,
    }
    looked: dict[Unit, int] = {
        "rows": len(ratios),
        "micro-batches": len({id(one.batch) for one in ratios}),
        "steps": len({one.batch.micro.step for one in ratios}),
    }
    noise = max(one.batch.noise for one in ratios)
    is_other = reading.smoothing != loss.smoothings[0]
    finding, explained = None, reading.state == "right" and not is_other
    if explained:
        finding = _arrives_scaled(facts, batches)
    elif reading.state == "even":
        explained = _is_divided_later(facts, loss, reading)
        finding = None if explained else _by_tokens(reading) or _of_one_size(facts, loss, reading)
    elif reading.state == "apart":
        finding = _exchanged(facts, loss, batches) or _of_other_margins(loss, reading)
    finding = finding or (None if explained else _beyond(loss, batches))
    if finding is not None:
        if kind := _other_kind(facts, loss, batches):
            finding = replace(finding, message=f"{finding.message}; {kind}")
        return CheckOutcome((finding,), measured=measured)
    if explained:
        return CheckOutcome(looked_at=looked, noise=noise, measured=measured)
    if reading.state == "right":
        why = "whether the loss has label_smoothing in it differs between releases"
        return CheckOutcome(not_run=why, measured=measured, is_needed=True)
    if reading.state in ("by-length", "by-sum"):
        why = "answers are weighed by their lengths"
        return CheckOutcome(not_run=why, measured=measured, is_needed=True)
    low, high = (pick(one.times for one in ratios) for pick in (min, max))
    why = (
        f"weights of the first step are {low:.4g} to {high:.4g} times what is due where a policy is"
        " its reference: "
    ) + (
        f"the trainer has a loss of its own ({_overridden(facts)})"
        if loss.is_own
        else "it is another model, something is dropped out, or an argument is not known here"
    )
    return CheckOutcome(not_run=why, measured=measured, is_needed=True)


def _overridden(facts: Facts) -> str:
    return ", ".join(map(str, facts.of("preference")[0]["overridden"]))


def _other_kind(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> str | None:
    """Return which other kind of loss has these weights."""
    for kind in ("sigmoid", "sigmoid_norm", "hinge", "ipo"):
        other = replace(loss, arguments={**loss.arguments, "loss_type": kind})
        is_other = loss.method == "dpo" and not loss.is_free and kind not in loss.kinds
        if is_other and read_pairs(facts, other, batches).state == "right":
            return f"loss_type {kind} has these weights"
    return None


def _is_divided_later(facts: Facts, loss: PreferenceLoss, reading: Reading) -> bool:
    """Return whether weights are too large because something divides them after the passes."""
    times, first = reading.times, reading.ratios[0].batch
    arrived = _factor(facts, first.micro.step)
    if arrived is not None and abs(arrived * times - 1) <= _NEAR:
        return True
    asked = int(loss.number("gradient_accumulation_steps", 0))
    # a short step, divided by the micro-batches of a whole one
    return first.passes < asked and abs(times * asked / first.passes - 1) <= first.tolerance


def _of_one_size(facts: Facts, loss: PreferenceLoss, reading: Reading) -> Diagnostic | None:
    """Say by what all weights are too large, or too small."""
    times, first = reading.times, reading.ratios[0].batch
    what, of = ("pairs", " of a pair") if loss.is_paired else ("rows", "")
    summary = (
        f"each token{of} weighs {times:.4g} times what β = {loss.beta:g} and the {what} of the step"
        " give"
    )
    other = _other_beta(loss, times)
    for is_twice in (False, True):
        size = 1 / times if is_twice else times
        counts = divisors(loss, first, facts.world)
        named = [f"{n} {name}" for n, name in counts if abs(size / n - 1) <= first.tolerance]
        if named:
            message = (
                f"{summary}: it is divided by its {named[0]} twice"
                if is_twice
                else f"{summary}: the step has {named[0]}, and is not divided by them"
            )
            message += f" (or {'; '.join(filter(None, [*named[1:], other]))})"
            severity = {"severity": "warning"} if "each" in named[0] else {}
            return found(OFF_SCALE, message, **severity)
    coarse = any(one.batch.is_coarse for one in reading.ratios)
    if loss.is_own or (coarse and (not reading.is_certain or 1 / 1.2 < times < 1.2)):
        return None
    return found(OFF_SCALE, f"{summary}: {other}", severity="warning")


def _by_tokens(reading: Reading) -> Diagnostic | None:
    """Look for a loss that is divided by the learnt tokens of each micro-batch."""
    for is_sum in (False, True):
        times = [
            one.times
            * sum(row.tokens for row in one.batch.rows.values())
            / (len(one.batch.pairs or one.batch.rows) if is_sum else 1)
            for one in reading.ratios
        ]
        if all(
            abs(a - 1) <= one.batch.tolerance for a, one in zip(times, reading.ratios, strict=True)
        ):
            message = (
                f"weights are {reading.times:.4g} times what is due: the loss of each micro-batch"
                f" is divided by its learnt tokens{'' if is_sum else ' too'}"
            )
            return found(OFF_SCALE, message, severity="warning")
    return None


def _exchanged(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]
) -> Diagnostic | None:
    """Look for KTO's weights of its two labels, each in place of the other."""
    good, bad = (loss.number(f"{name}desirable_weight", 1.0) for name in ("", "un"))
    if loss.method != "kto" or good == bad:
        return None
    given = {**loss.arguments, "desirable_weight": bad, "undesirable_weight": good}
    if read_pairs(facts, replace(loss, arguments=given), batches).state != "right":
        return None
    message = (
        f"desirable answers have the weight {bad:g} of undesirable ones, and those {good:g}: the"
        " two arguments are exchanged"
    )
    return found(OFF_SCALE, message)


def _of_other_margins(loss: PreferenceLoss, reading: Reading) -> Diagnostic | None:
    """Say that weights are not those of the margins that are known."""
    if not reading.is_certain:
        return None
    if finding := _by_tokens(reading):
        return finding
    passes = reading.ratios[0].batch.passes
    for one_size in (passes, 1 / passes):
        if passes > 1 and are_all(reading.ratios, one_size):
            return found(OFF_SCALE, f"weights are {one_size:.4g} times what is due")
    if loss.is_own or any(one.batch.is_coarse for one in reading.ratios):
        return None  # margins of 16 bits are rounded too
    return (
        found(OFF_SCALE, message, severity="warning") if (message := _odd(loss, reading)) else None
    )


def _odd(loss: PreferenceLoss, reading: Reading) -> str | None:
    times = [one.times for one in reading.ratios if not one.is_copied] or [
        one.times for one in reading.ratios
    ]
    summary = f"weights are {min(times):.4g} to {max(times):.4g} times what β = {loss.beta:g} and"
    if loss.is_free:
        return (
            f"{summary} the log-probabilities of the answers give: the loss has another β, or"
            " another margin"
        )
    is_plain = loss.method == "dpo" and loss.is_symmetric and loss.is_monotone and loss.is_sloped
    if not is_plain or _by_side(reading):
        return None
    return (
        f"{summary} margins of 0 give, though the policy is its reference in this step: what is"
        " taken for the reference's log-probabilities is not theirs, or not those of the same rows"
    )


def _by_side(reading: Reading) -> bool:
    """Return whether the sides of pairs have different sizes, which is a matter of sides."""
    sizes: dict[bool, list[float]] = {True: [], False: []}
    for one in reading.ratios:
        sizes[one.is_up].append(one.times)
    ups, downs = (sorted(sizes[key]) for key in (True, False))
    near = max(one.batch.tolerance for one in reading.ratios)
    return len(ups) != len(downs) or any(
        abs(a / b - 1) > 2 * near for a, b in zip(ups, downs, strict=True)
    )


def _other_beta(loss: PreferenceLoss, times: float) -> str:
    inverse = loss.kinds[0] in ("ipo", "sppo_hard")
    beta = loss.beta / times if inverse else loss.beta * times
    return f"β is {beta:.4g} in the loss" if len(loss.kinds) == 1 else "something multiplies it"


def _beyond(loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> Diagnostic | None:
    """Look for weights that no margin allows."""
    most = loss.most()
    if most is None or loss.is_own:
        return None
    worst, where = 0.0, batches[0]
    for batch in batches:
        whole = batch.batch(loss)
        if whole is None:
            continue
        chosen = {up for up, _ in batch.pairs}
        for at, row in batch.rows.items():
            if row.weight is None:
                continue
            besides = 0.0
            if at in chosen:
                besides = loss.copied(whole, Answer(row.tokens, 0.0))
            size = abs(row.weight) * batch.passes - besides
            bound = most[0 if row.weight > 0 else 1] / whole.pairs
            over = size / bound / (1 + batch.tolerance)
            if over > worst:
                worst, where = over, batch
    if worst <= 1:
        return None
    message = (
        f"a token weighs {worst:.4g} times the most that β = {loss.beta:g} allows for any margin,"
        f" in {where.micro}"
    )
    if worst <= where.passes:
        message += f": the step has {where.passes} micro-batches, by which it may not be divided"
    return found(OFF_SCALE, message)


def _factor(facts: Facts, step: int) -> float | None:
    """Return the factor of gradients on their way to the optimizer, of the mean over ranks."""
    engine = engine_of(facts, step)
    if engine is None or engine.misfit > engine.tolerance:
        return None
    return abs(engine.factor) * facts.world


def _arrives_scaled(facts: Facts, batches: Sequence[JudgedBatch]) -> Diagnostic | None:
    """Look for gradients that come several times as large to the optimizer."""
    passes, world = batches[0].passes, facts.world
    steps = sorted({batch.micro.step for batch in batches})
    factors = [factor for step in steps if (factor := _factor(facts, step)) is not None]
    if len(factors) < len(steps):
        return None
    names = {passes * world: "passes", world: "ranks", passes: "micro-batches"}
    for times, name in names.items():
        if times > 1 and all(math.isclose(one, times, rel_tol=0.01) for one in factors):
            message = (
                f"the optimizer gets {times} times the gradient of the pairs: there are {times}"
                f" {name}, and it is not divided by them"
            )
            return found(OFF_SCALE, message)
    return None


CHECKS = (
    WatchCheck(OFF_SCALE, "learnt", _scaled, {"rows": 1, "micro-batches": 1}, most_noise=0.25),
)
