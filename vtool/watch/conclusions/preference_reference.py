"""The reference of a preference: another model than the policy, or what the policy was."""

from collections.abc import Sequence

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.preference_losses import PreferenceLoss
from vtool.watch.conclusions.preference_reading import expected_weights, read_pairs
from vtool.watch.conclusions.preference_rows import (
    JudgedBatch,
    judged_batches,
    loss_of,
    no_preference,
)
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact

REFERENCE = Rule(
    name="preference-reference",
    code="VT919",
    summary="The reference of a preference is the policy itself, or is trained.",
    why=(
        "Margins are taken against what the policy was before. Where the reference moves with the"
        " policy they stay 0: β keeps nothing back, and each pair is pushed apart without an end."
    ),
    bad="trainer.ref_model = trainer.model",
    good="ref_model=None, of which TRL makes a copy, or turns the adapters off",
    fix=(
        "Give the trainer a frozen copy as its reference, or none; with adapters, let it compute"
        " the reference with them turned off. Where it is to follow: sync_ref_model=True."
    ),
)
_SURE = 20.0
"""The least size of a difference, over rounding, for its absence to say something."""
_ROUNDING_16 = 2.0**-8


def _reference(facts: Facts) -> CheckOutcome:
    if why := no_preference(facts):
        return CheckOutcome(not_run=why, applies=False)
    loss = loss_of(facts)
    assert loss is not None
    looks = [fact for fact in facts.of("preference") if fact.get("reference")]
    if why := _none_of_its_own(loss, looks):
        return CheckOutcome(not_run=why, applies=False)
    batches = [batch for batch in judged_batches(facts, loss) if batch.rows]
    if finding := (
        _itself(looks)
        or _moves(looks)
        or _twins(facts, loss, looks)
        or _no_margin(facts, loss, batches)
    ):
        return CheckOutcome((finding,))
    return _looked_at(facts, loss, batches, looks)


def _none_of_its_own(loss: PreferenceLoss, looks: Sequence[Fact]) -> str | None:
    if loss.is_free:
        return "the loss has no reference"
    asked = loss.arguments.get("sync_ref_model")
    if asked or any(fact["reference"]["follows"] for fact in looks):
        return "the reference is asked to follow the policy"
    return None


def _looked_at(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch], looks: Sequence[Fact]
) -> CheckOutcome:
    later = {int(fact["step"]) for fact in looks} - {0}
    if not later:
        alone = "one step alone was read: the policy is its reference still"
        return CheckOutcome(not_run=alone, is_needed=True)
    looked: dict[Unit, int] = {"steps": len(later) + 1}
    tensors = max(int(fact["reference"]["tensors"]) for fact in looks)
    kinds = {str(fact["reference"]["kind"]) for fact in looks}
    why = None
    if moving := _with_margins(facts, loss, batches):
        looked["rows"] = moving
    elif loss.arguments.get("precompute_ref_log_probs"):
        why = "what the reference says was computed before the run, and no margin is seen"
    elif kinds == {"model"}:
        looked["tensors"] = tensors
        if not all(fact["reference"]["ran"] for fact in looks if int(fact["step"]) > 0):
            why = "no pass of the model that is the reference was seen"
    else:
        looked["passes"] = sum(
            bool(one["reference"] and one["reference"]["apart"] and int(one["step"]))
            for one in facts.of("micro")
        )
        if not looked["passes"]:
            why = "no pass without gradients was seen of the same rows, and of other weights"
    is_fixed = bool(loss.arguments.get("precompute_ref_log_probs"))
    return CheckOutcome(not_run=why, looked_at=looked, is_needed=not is_fixed)


def _with_margins(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> int:
    """Count the rows whose weight is that of a margin which is not 0."""
    if loss.unknown or not loss.is_sloped or read_pairs(facts, loss, batches).state != "right":
        return 0
    return sum(
        abs(weight / due * batch.passes - 1) > batch.tolerance
        for batch in batches
        if batch.micro.step > 0
        for _, weight, due in expected_weights(loss, loss.smoothings[0], batch)
    )


def _itself(looks: Sequence[Fact]) -> Diagnostic | None:
    for fact in looks:
        reference = fact["reference"]
        if reference["same"]:
            return found(REFERENCE, "the reference is the policy: the same model, which is trained")
        if shared := int(reference["shared"]):
            message = (
                f"the reference shares {shared} trained tensors with the policy: it moves with it"
            )
            return found(REFERENCE, message)
    return None


def _moves(looks: Sequence[Fact]) -> Diagnostic | None:
    for fact in looks:
        reference = fact["reference"]
        moved = int(reference["moved"])
        if not moved:
            continue
        step, tensors = int(fact["step"]), int(reference["tensors"])
        message = f"{moved} of {tensors} tensors of the reference have moved by step {step + 1}"
        compared = int(reference["compared"])
        if compared and int(reference["equal"]) == compared:
            return found(REFERENCE, f"{message}: they are the policy's again")
        if owned := int(reference["owned"]):
            return found(REFERENCE, f"{message}: the optimizer has {owned} of its tensors")
        return found(REFERENCE, message, severity="warning")
    return None


def _rate(facts: Facts, step: int) -> float:
    """Return the greatest learning rate of a step."""
    groups = [
        group
        for one in facts.of("stepped")
        if int(one["step"]) == step
        for group in one.get("groups") or ()
    ]
    return max((float(group.get("lr") or 0) for group in groups), default=0.0)


def _twins(facts: Facts, loss: PreferenceLoss, looks: Sequence[Fact]) -> Diagnostic | None:
    """Look for a reference that the policy's own model computes, as the policy."""
    is_model = any(fact["reference"]["kind"] == "model" for fact in looks)
    if is_model and (
        loss.arguments.get("precompute_ref_log_probs")
        or any(fact["reference"]["ran"] != 0 for fact in looks if int(fact["step"]) > 0)
    ):
        return None
    micros = [micro for micro in facts.micros if micro.step > 0 and micro.fact.get("reference")]
    if not micros:
        return None
    sure = 0.0
    for micro in micros:
        twin, rate = micro.fact["reference"], _rate(facts, micro.step - 1)
        if twin.get("apart") != 0:
            return None
        if micro.is_coarse:  # how many states would have been rounded otherwise
            sure += int(twin["elements"]) * rate / _ROUNDING_16
        elif rate > 0:
            sure += _SURE
    if sure < _SURE:
        return None
    message = (
        f"in {len(micros)} micro-batches after the first step the reference's hidden states are the"
        " policy's, to the bit: it is computed by the policy"
        + (", and the reference's own model is not run" if is_model else ", with its adapters")
    )
    return found(REFERENCE, message)


def _no_margin(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]
) -> Diagnostic | None:
    """Look for weights that stay those of the first step, though the policy has moved."""
    later = [batch for batch in batches if batch.micro.step > 0]
    if loss.unknown or not loss.is_sloped or not later or any(one.is_coarse for one in batches):
        return None
    scale: float | None = None
    for batch in sorted(batches, key=lambda one: one.micro.step):
        if batch.alike() and batch.micro.step > 0:
            return None
        if scale is None and batch.micro.step > 0:
            return None  # nothing was measured in the first step
        for _, weight, due in expected_weights(loss, loss.smoothings[0], batch):
            times = weight / due * batch.passes
            scale = times if scale is None else scale
            if abs(times / scale - 1) > 4 * batch.micro.single:
                return None
    norms = [float(one.get("norm") or 0) for one in facts.of("arrived") if int(one["step"]) == 0]
    # one step changes the loss, and with it a pair's weight, by at least about this much of it
    change = _rate(facts, 0) * min(norms, default=0.0)
    if scale is None or change < _SURE * max(batch.micro.single for batch in later):
        return None
    message = (
        "weights stay those of margins of 0 after the policy has moved: the reference moves with"
        " it, or is the policy"
    )
    return found(REFERENCE, message)


CHECKS = (WatchCheck(REFERENCE, "learnt", _reference, {"steps": 2}),)
