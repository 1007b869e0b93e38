"""Dropout that is asked for and is off, as the model is in evaluation mode while it learns."""

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.facts import Facts

_OFF = Rule(
    name="dropout-off",
    code="VT936",
    summary="The model learns in evaluation mode, so that the dropout of its config is off.",
    why=(
        "After model.eval() nothing else changes: losses are a little lower, and the"
        " regularization that the config asks for is not there. An evaluation in the middle of a"
        " run leaves it so where nobody calls model.train() again."
    ),
    bad="evaluate(model); loss.backward()",
    good="evaluate(model); model.train(); loss.backward()",
    fix="Call model.train() before each step, or set the dropout to 0 if it is not wanted.",
    severity="warning",
)


def _off(facts: Facts) -> CheckOutcome:
    looked = [one for one in facts.of("micro") if not one["why"]]
    if not looked:
        return CheckOutcome(not_run="no pass of the model was seen")
    passes = [one for one in looked if one["dropout"]]
    off = [one for one in passes if one["dropout"] == "off"]
    measured = {"passes": len(passes), "off": len(off)}
    if not passes:
        return CheckOutcome(not_run="the model has no dropout")
    if not off:
        return CheckOutcome(looked_at={"passes": len(passes)}, measured=measured)
    first = f"step {int(off[0]['step']) + 1}, micro-batch {int(off[0]['index']) + 1}"
    message = (
        f"in {len(off)} of {len(passes)} passes the model is in evaluation mode, and its dropout"
        f" is off (first in {first})"
    )
    return CheckOutcome((found(_OFF, message),), measured=measured)


CHECKS = (WatchCheck(_OFF, "learnt", _off, {"passes": 1}),)
