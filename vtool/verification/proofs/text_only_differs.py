"""Proof that a step of text alone leaves the vision tower and its optimizer state as they are."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Proof,
    ProofContext,
    ProofResult,
    failed,
    list_first,
    not_run,
    passed,
)

RULE = Rule(
    name="text-only-differs",
    code="VT718",
    summary=(
        "A step without images changes the vision tower or its optimizer state, or trains nothing."
    ),
    holds="A step without images leaves the vision tower and its optimizer state as they were.",
    why=(
        "Gradients of 0 still let AdamW decay weights and move them by old momentum (verl#7833);"
        " plain DDP waits for ever."
    ),
    bad="a dummy visual forward in every step",
    good="a dummy visual forward only in steps where some rank has an image",
    fix=SHIPPED_PASS + "report it with this line.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare tower and optimizer state before and after a step of text alone, to the byte."""
    from vtool.verification import steps

    session, progress = context.open()
    what = f"the tower after a step of text alone{steps.on_engine(session)}"
    if context.run.model.dummy_visual == "always":
        reason = "the tower takes part in every step, decays, and is updated"
        return not_run(RULE, what, f"model.dummy_visual=always: {reason}")
    texts, images = context.rows_without_images(), context.rows_with_images()
    if not texts or not images:
        return not_run(
            RULE, what, "no row has an image" if texts else "no row could be made that has no image"
        )
    steps.take_step(session, progress, steps.split_between_ranks(context, session, images + texts))
    before, state = steps.copy_weights(session), steps.copy_optimizer_state(session)
    step = steps.take_step(
        session, progress, steps.split_between_ranks(context, session, texts), step=2
    )
    after, later = steps.copy_weights(session), steps.copy_optimizer_state(session)
    tower = {name for name in before if steps.is_of_tower(context, name)}
    unchanged = {name for name in before if before[name].equal(after[name])}
    moved = sorted(tower - unchanged) + sorted(
        name
        for name, tensor in state.items()
        if steps.is_of_tower(context, name) and (name not in later or not tensor.equal(later[name]))
    )
    if moved:
        return failed(RULE, what, f"a step of text alone has changed {list_first(moved)}")
    if not all(bool(gradient.isfinite().all()) for gradient in step.gradients.values()):
        return failed(RULE, what, "a step of text alone has gradients that are not finite")
    trained = {name for name in before if steps.is_trained(context, name)} - tower
    if trained and trained <= unchanged:
        return failed(RULE, what, "a step of text alone has changed nothing of the language model")
    return passed(RULE, what)


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="Steps",
    method=(
        "A step of text alone after one with images: the tower and its optimizer state stay to the"
        " byte, the language model does not. Not run with `model.dummy_visual=always`, which asks"
        " for the opposite."
    ),
    catches="AdamW's decay by gradients of 0 (verl#7833).",
    upstream="verl#7833",
    on_ranks=True,
)
