"""Parameters, layers and whole models that nothing gives a gradient."""

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.arrived import first_names, not_arrived
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.gone import (
    IN_EACH_STEP,
    partly_zeroed,
    waiting_in_engine,
    zeroed_before_step,
)
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import not_null

NO_GRADIENT = Rule(
    name="parameter-without-gradient",
    code="VT928",
    summary="A parameter of the optimizer had no gradient, or one of zeros, in all watched steps.",
    why="It is not trained by these rows: a tower without images, experts that nobody asked for.",
    bad="a vision tower in steps that have only text",
    good="every trained parameter with a gradient",
    fix="Nothing, if no row of these steps uses it.",
    severity="note",
)
_NONE_COMES = "the loss gives the last hidden states no gradient"
_NONE_COMES_HELP = (
    "look for an autograd function in the loss that returns None for its hidden states: inside of"
    " its forward, what is made of an input requires no gradient (verl#6913)"
)
_IDLE_HELP = (
    "look for detach() and no_grad() on the way, for adapters whose two matrices are both zero or"
    " of which one is frozen at zero, and for use_reentrant=True with inputs without a gradient; if"
    " these layers are left out on purpose, freeze them"
)


def _never_run(facts: Facts) -> bool:
    """Return whether no pass of the model was seen, and nothing gave it a gradient or moved it."""
    return bool(
        facts.no_gradients
        and len(facts.of("arrived")) > 1
        and not facts.of("rows")
        and not facts.of("micro")
        and facts.weights_move is False
    )


def _idle(facts: Facts) -> list[str]:
    """Return the layers without a gradient in each of several steps in which others have one."""
    arrived = [one for one in facts.of("arrived") if not_null(one, "idle") is not None]
    if len({int(one["step"]) for one in arrived}) < 2 or facts.not_data_parallel:
        return []
    taught = any(micro.supervised for micro in facts.micros)
    if not taught and not all(one["norm"] for one in arrived):
        return []
    seen = [set(one["idle"]) for one in arrived]
    idle = set.intersection(*seen)
    if len(idle) < IN_EACH_STEP * len(set.union(*seen)):
        return []  # layers take turns
    return [layer for layer in arrived[0]["idle"] if layer in idle]


def _blind(facts: Facts) -> int:
    """Return how many layers see images, where rows have some and none of them has a gradient."""
    looked = [not_null(one, "of_images") for one in facts.of("arrived")]
    seen = [one for one in looked if not_null(one, "layers")]
    steps = {int(one["step"]) for one in facts.of("arrived")}
    pixels = {int(one["step"]) for one in facts.of("rows") if one["pixels"]}
    if len(steps) < 2 or not seen or not steps <= pixels or facts.not_data_parallel:
        return 0
    layers = max(int(one["layers"]) for one in seen)
    return layers if all(one["layers"] == not_null(one, "idle") for one in seen) else 0


def _no_gradient(facts: Facts) -> CheckOutcome:
    if why := not_arrived(facts):
        return CheckOutcome(not_run=why)
    if one := _of_all(facts) or _gone(facts):
        return CheckOutcome((one,))
    if why := facts.no_gradients:
        return CheckOutcome(not_run=why)
    without = [{*one["no_gradient"], *one["zero_gradient"]} for one in facts.of("arrived")]
    names = sorted(set.intersection(*without))
    if one := _of_layers(facts):
        return CheckOutcome((one,))
    looked_at: dict[Unit, int] = {
        "steps": len({int(one["step"]) for one in facts.of("arrived")}),
        "tensors": int(facts.model["trainable"]),
    }
    if not names:
        return CheckOutcome(looked_at=looked_at)
    message = f"in all watched steps: {first_names(names, len(names))}"
    return CheckOutcome((found(NO_GRADIENT, message),), looked_at=looked_at)


def _of_all(facts: Facts) -> Diagnostic | None:
    """Look for a loss that trains the head alone, and for a model that is never run."""
    passes = facts.of("micro")
    if passes and all(one.get("why") == _NONE_COMES for one in passes):
        message = (
            f"in {len(passes)} passes {_NONE_COMES}: nothing of the {facts.name} that comes before"
            " its head is trained"
        )
        return found(NO_GRADIENT, message, help=_NONE_COMES_HELP, severity="error")
    if _never_run(facts):
        steps = len({int(one["step"]) for one in facts.of("arrived")})
        message = (
            f"none of {facts.model.get('trainable')} parameters had a gradient in {steps} steps,"
            f" and the {facts.name} that the {facts.model.get('optimizer')} holds was never run:"
            " it is another one, or a copy, of what is trained"
        )
        help = "make the optimizer from the parameters of the model that computes the loss"
        return found(NO_GRADIENT, message, help=help, severity="warning")
    return None


def _gone(facts: Facts) -> Diagnostic | None:
    """Look for gradients that backward passes left, and that the optimizer does not get."""
    one = waiting_in_engine(facts) or zeroed_before_step(facts) or partly_zeroed(facts)
    if one is None:
        return None
    return found(NO_GRADIENT, one.message, help=one.help, severity=one.severity)


def _of_layers(facts: Facts) -> Diagnostic | None:
    """Look for layers that nothing gives a gradient."""
    if idle := _idle(facts):
        message = (
            f"in all watched steps nothing comes to any trained parameter of {len(idle)}"
            f" layer{'s' if len(idle) > 1 else ''}: {first_names(idle, len(idle))}"
        )
        return found(NO_GRADIENT, message, help=_IDLE_HELP, severity="warning")
    if layers := _blind(facts):
        message = (
            f"rows have images, and in all watched steps nothing comes to the {layers} trained"
            " layers that see them"
        )
        return found(NO_GRADIENT, message, help=_IDLE_HELP, severity="warning")
    return None


CHECKS = (WatchCheck(NO_GRADIENT, "arrived", _no_gradient, {"steps": 1, "tensors": 1}),)
