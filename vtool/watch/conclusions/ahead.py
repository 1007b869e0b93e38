"""Learnt tokens that the model sees before it is to predict them."""

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.facts import Facts

SEEN = Rule(
    name="targets-seen",
    code="VT914",
    summary="Learnt tokens are predicted from positions that see them: attention is not causal.",
    why=(
        "The model learns to copy the token it is shown, the loss falls to nearly 0, and nothing of"
        " that is of use where an answer is written token by token."
    ),
    bad="a mask of rows x 1 x queries x keys that is made from the padding alone",
    good="a mask that is causal as well, or none: the model makes its own",
    fix=(
        "Give the model the mask of two dimensions, or combine yours with a lower triangle. Look"
        " for is_causal=False, and for an encoder's settings."
    ),
)
_CERTAIN = 3.0
"""Times of what rounding allows."""


def _seen(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    if any(micro.not_next for micro in read_micros(facts)):
        return CheckOutcome(not_run="what is learnt is not the next token")
    cut = [
        one["ahead"]
        for one in facts.of("alone")
        if one.get("ahead") and not one.get("dropout") and one.get("repeats") is not False
    ]
    masks = [one for one in facts.of("ahead") if one.get("tokens")]
    if not cut and not masks:
        why = facts.skipped("alone") or "no row was computed up to a part of it"
        return CheckOutcome(not_run=why)
    for one in masks:
        if one["seen"]:
            message = (
                f"{one['seen']} of {one['tokens']} learnt tokens are seen by the positions that"
                " predict them, by the model's attention_mask of four dimensions"
            )
            return CheckOutcome((found(SEEN, message),))
    times = [float(one["apart"]) / max(float(one["tolerance"]), 1e-30) for one in cut]
    for one, most in zip(cut, times, strict=True):
        if most > _CERTAIN:
            message = (
                f"where the last {one['behind']} tokens of a row are cut off, hidden states before"
                f" them are {float(one['apart']):.2g} apart (rounding allows"
                f" {float(one['tolerance']):.1g}): they see what follows"
            )
            return CheckOutcome((found(SEEN, message),))
    largest = f"{max(times):.2g} of what rounding allows" if times else None
    tokens = sum(int(one["tokens"]) for one in (*cut, *masks))
    measured = {"rows": len(cut), "masks": len(masks), "largest": largest}
    return CheckOutcome(looked_at={"tokens": tokens}, measured=measured)


CHECKS = (WatchCheck(SEEN, "alone", _seen, {"tokens": 1}),)
