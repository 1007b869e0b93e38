"""Frozen weights that move: by an optimizer, a hook, or adapters merged into them."""

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.arrived import first_names
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null

FROZEN_MOVED = Rule(
    name="frozen-parameter-moved",
    code="VT926",
    summary="A parameter that requires no gradient changed in a step.",
    why="What is frozen is meant to stay: it is saved, merged and served as if it had.",
    bad="weight decay or an average that is applied to every parameter",
    good="requires_grad_(False), and weights that are the same to the byte",
    fix="Look at what writes into parameters besides the optimizer: averages, ties, callbacks.",
)
BASE_TRAINED = Rule(
    name="base-trained-beside-adapters",
    code="VT937",
    summary="Base weights of layers with adapters are trained as well, beside the adapters.",
    why=(
        "What is saved and served are the adapters alone: what the weights beside them have learnt"
        " is lost, and on the base as it was the adapters do something else. The optimizer also"
        " keeps the moments that adapters were to save."
    ),
    bad="get_peft_model(model, config), then requires_grad_(True) for the whole model",
    good="adapters that train, over weights that are frozen; whole modules by modules_to_save",
    fix=(
        "Freeze the base weights after adapters are added. What is to be trained whole belongs in"
        " modules_to_save, which is saved with the adapters."
    ),
    severity="warning",
)

_MERGED = "call unmerge_adapter() before training goes on, or merge a copy of the model"
_ANEW = (
    "nothing, if adapters are merged and begun anew on purpose (ReLoRA): then save the base weights"
    " too"
)
_CHANGED = (
    "look at what writes into the base weights of adapters; if they are merged and begun anew on"
    " purpose (ReLoRA), freeze a merged copy, and save the base weights too"
)
_LEFT = (
    "set their gradients to None when they are frozen (zero_grad(set_to_none=True)), or make the"
    " optimizer without them: with a gradient of zeros, momentum and decay move them on"
)


def _merged(one: Fact) -> Diagnostic | None:
    """Look for adapters that are in the base weights where they should be beside them."""
    about, step = one["adapters"], int(one["step"]) + 1
    if about is None:
        return None
    if merged := not_null(about, "merged"):
        message = (
            f"in step {step} adapters are merged into {first_names(merged, about['n_merged'])}:"
            " they are trained no more, and the base weights are not the ones that are frozen"
        )
        return found(FROZEN_MOVED, message, help=_MERGED)
    if not not_null(about, "n_moved"):
        return None
    names = first_names(about["moved"], int(about["n_moved"]))
    share = about["share"]
    if share is not None and 0.5 < share < 1.5:  # 16 bits round a part of it away
        message = (
            f"before step {step} the product of the adapters was added to {names}: adapters were"
            " merged into the base weights and not unmerged, so the model has them twice"
        )
        return found(FROZEN_MOVED, message, help=_MERGED)
    message = f"before step {step}, by more than merging and unmerging rounds: {names}"
    if about["anew"]:
        message += "; the adapters begin anew, with a product of 0"
        return found(FROZEN_MOVED, message, help=_ANEW, severity="note")
    return found(FROZEN_MOVED, message, help=_CHANGED)


def _in_the_step(one: Fact) -> Diagnostic | None:
    names = not_null(one, "frozen_that_moved")
    if not names:
        return None
    count = int(one["n_frozen_that_moved"])
    message = f"in step {int(one['step']) + 1}: {first_names(names, count)}"
    if not int(one["n_frozen_pushed"]):
        return found(FROZEN_MOVED, message)
    late = int(one["n_frozen_late"])
    message += (
        f"; {'they were trained in an earlier step, and ' if late else ''}the optimizer has them,"
        " with the gradients that were left"
    )
    return found(FROZEN_MOVED, message, help=_LEFT)


def _frozen_moved(facts: Facts) -> CheckOutcome:
    stepped = facts.of("stepped")
    if not stepped:
        return CheckOutcome(not_run=(facts.errors_of("arrived") or ["no step was reached"])[0])
    seen = [_in_the_step(one) or _merged(one) for one in stepped]
    ones = [one for one in seen if one is not None]
    errors = [one for one in ones if one.severity == "error"]
    if why := facts.skipped("frozen"):
        return CheckOutcome(tuple(errors[:1]), not_run=why)
    if ones:
        return CheckOutcome(tuple((errors or ones)[:1]), looked_at={"steps": len(stepped)})
    frozen = max(int(one["n_frozen"]) for one in stepped)
    if not frozen:
        return CheckOutcome(not_run="no parameter is frozen")
    return CheckOutcome(looked_at={"steps": len(stepped), "tensors": frozen})


def _base_trained(facts: Facts) -> CheckOutcome:
    stepped = facts.of("stepped")
    if not stepped:
        return CheckOutcome(not_run=(facts.errors_of("arrived") or ["no step was reached"])[0])
    about = [(one, one["adapters"]) for one in stepped if one["adapters"] is not None]
    if not about:
        return CheckOutcome(not_run="the model has no adapters")
    for one, each in about:
        if names := not_null(each, "base_trained"):
            count = int(each["n_base_trained"])
            message = (
                f"in step {int(one['step']) + 1} the optimizer has {count} of the"
                f" {each['modules']} weights that adapters adapt, beside the adapters:"
                f" {first_names(names, count)}"
            )
            return CheckOutcome((found(BASE_TRAINED, message),))
        if names := not_null(each, "beside"):
            count = int(each["n_beside"])
            message = (
                f"in step {int(one['step']) + 1} the optimizer has {count} matrices, in layers with"
                f" adapters, that none adapts: {first_names(names, count)}; they are not in"
                " modules_to_save, so what they learn is not saved with the adapters"
            )
            return CheckOutcome((found(BASE_TRAINED, message),))
    tensors = max(int(each["trained"]) for _, each in about)
    return CheckOutcome(looked_at={"steps": len(about), "tensors": tensors})


CHECKS = (
    WatchCheck(FROZEN_MOVED, "arrived", _frozen_moved, {"steps": 1, "tensors": 1}),
    WatchCheck(BASE_TRAINED, "arrived", _base_trained, {"steps": 1, "tensors": 1}),
)
