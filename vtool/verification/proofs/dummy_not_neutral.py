"""Proof that the dummy visual forward adds nothing to a step of text alone."""

from typing import TYPE_CHECKING

from vtool.diagnostics import Findings, Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    failed,
    list_first,
    not_run,
)

if TYPE_CHECKING:
    from vtool.verification.steps import StepNumbers

RULE = Rule(
    name="dummy-not-neutral",
    code="VT710",
    summary=(
        "The dummy visual forward changes a loss or a gradient, or leaves a trained parameter of"
        " the tower without a gradient of 0."
    ),
    holds="The dummy visual forward changes no loss and no gradient, and gives the tower one of 0.",
    why=(
        "It is there so that ranks without images take part in every reduction. What it adds is"
        " trained on, and what it leaves out is waited for by the other ranks (verl#5881: an"
        " in-place addition; outputs that are not unpacked as on the real path)."
    ),
    bad="inputs_embeds += 0.0 * visual(zeros).mean(), which is NaN where the tower's output is",
    good="embedded + one scalar that is a constant, and whose gradient is 0",
    fix=SHIPPED_PASS
    + "look at what has been changed in the family's tower, or report it with this line.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare a step of text alone with the dummy visual forward and without it, to the bit.

    Then every trained parameter of the tower must have a finite gradient of 0, and a tower whose
    output is NaN must change nothing either: 0 · NaN is NaN.
    """
    what = "loss and gradients of a step of text alone, with the dummy visual forward and without"
    rows = context.rows_without_images()
    if not rows:
        return not_run(RULE, what, "no row could be made that has no image")
    with_dummy, without = (_text_step(context, rows, dummy=name) for name in ("always", "never"))
    if with_dummy.loss != without.loss:
        return failed(
            RULE,
            what,
            f"the dummy visual forward changes the loss of a step from {without.loss!r} to"
            f" {with_dummy.loss!r}",
        )
    if spoilt := _not_finite_with_nan_tower(context, rows):
        return failed(
            RULE,
            what,
            f"where the tower gives NaN, so does the dummy visual forward: {list_first(spoilt)}",
        )
    trained = {
        member.name
        for group in context.open()[0].engine.optimizer_groups()
        for member in group.members
    }
    tower = {name for name in trained if context.family.component(name) != "language"}
    if message := _tower_problem(with_dummy, tower):
        return failed(RULE, what, message)
    found = [Difference("the loss", 0.0, 0.0)]
    for name in without.gradients.keys() | (with_dummy.gradients.keys() - tower):
        ours, theirs = with_dummy.gradients.get(name), without.gradients.get(name)
        if ours is None or theirs is None:
            side = "without" if ours is None else "with"
            return failed(RULE, what, f"{name} has a gradient {side} the dummy visual forward only")
        if name not in tower:
            found.append(Difference(name, float((ours - theirs).abs().max()), 0.0))
    return check_differences(RULE, what, found, "the dummy visual forward changes gradients")


def _tower_problem(step: "StepNumbers", tower: set[str]) -> str:
    """Return the problem of the tower's gradients; empty where they are 0."""
    for name in sorted(tower):
        gradient = step.gradients.get(name)
        if gradient is None:
            return (
                f"{name} gets no gradient from the dummy visual forward: other ranks would wait"
                " for it"
            )
        if not bool(gradient.isfinite().all()) or bool(gradient.any()):
            return (
                f"{name} gets a gradient of up to {float(gradient.abs().max()):.2g} from the dummy"
                " visual forward, and 0 is right"
            )
    return ""


def _not_finite_with_nan_tower(context: ProofContext, rows: list[int]) -> list[str]:
    """Return the gradients that are not finite where the dummy forward meets a tower of NaN."""
    try:
        step = _text_step(context, rows, dummy="always", nan=True)
    except Findings as findings:  # the loop checks loss and norm itself
        return [finding.rule for finding in findings.diagnostics]
    return [name for name, one in step.gradients.items() if not bool(one.isfinite().all())]


def _text_step(
    context: ProofContext, rows: list[int], *, dummy: str, nan: bool = False
) -> "StepNumbers":
    from vtool.verification import steps

    model = context.run.model.model_copy(update={"dummy_visual": dummy})
    session, progress = context.open(run=context.run.model_copy(update={"model": model}))
    if nan:
        for parameter in context.family.tower(session.engine.module)[0].parameters():
            parameter.data.fill_(float("nan"))
    return steps.take_step(session, progress, [context.batch(session, rows)])


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The gradient",
    method=(
        "A step of text alone with the dummy visual forward and without: the same loss and"
        " gradients to the bit, and finite gradients of 0 for every trained parameter of the"
        " tower."
    ),
    catches=(
        "outputs that are not unpacked, `0.0 * NaN`, a patch width written into the code"
        " (verl#5881), deepstack levels left out (EasyR1#530), a tower left out of the graph"
        " (trl#6617)."
    ),
    upstream="verl#5881",
)
