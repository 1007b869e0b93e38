"""Gradients whose elements are cut to one size before the step: clipping by value."""

import math

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.facts import Facts

CUT = Rule(
    name="gradients-clipped-by-value",
    code="VT935",
    summary="Most elements of the gradients are cut to one size before the optimizer's step.",
    why=(
        "Nothing but their signs is left: the direction is another one, and how much rows and"
        " tokens weigh is lost. A limit that was meant for the norm of the whole gradient does"
        " this, where clip_grad_value_ is given it."
    ),
    bad="torch.nn.utils.clip_grad_value_(parameters, 1e-6)",
    good="torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
    fix="Clip by the norm, or raise the limit; look for .sign_() too. If it is meant, it is right.",
    severity="warning",
)
_MOST = 0.75
_LEAST = 48
"""Elements to compare at least: so many alike are no coincidence."""
_VARIED = 2.0
"""Before they were cut, sizes differed by more."""


def _cut(facts: Facts) -> CheckOutcome:
    looked = cut = elements = 0
    size = 0.0
    for fact in facts.of("arrived"):
        pairs = [
            (abs(left), abs(now))
            for layer in (fact["layers"] or {}).values()
            for left, now in zip(layer["left"], layer["arrived"], strict=True)
            if left and now and math.isfinite(left) and math.isfinite(now)
        ]
        sizes = sorted(now for _, now in pairs)
        if len(pairs) < _LEAST:
            continue
        most = sizes[-1]
        alike = [left for left, now in pairs if now >= most * (1 - 1e-3)]
        looked, elements = looked + 1, elements + len(pairs)
        if len(alike) > _MOST * len(pairs) and max(alike) > _VARIED * min(alike):
            cut, size = cut + 1, most
    if not looked:
        return CheckOutcome(not_run="gradients of single layers were not seen on their way")
    measured = {"looked": looked, "cut": cut}
    if cut * 2 <= looked:
        return CheckOutcome(looked_at={"elements": elements}, measured=measured)
    message = (
        f"in {cut} of {looked} looks at gradients on their way to the step, nearly all elements"
        f" come to it with the size {size:.3g}, whatever the backward pass has left"
    )
    return CheckOutcome((found(CUT, message),), measured=measured)


CHECKS = (WatchCheck(CUT, "arrived", _cut, {"elements": _LEAST}),)
