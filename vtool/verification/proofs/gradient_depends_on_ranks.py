"""Proof that two ranks of the recipe's engine compute the gradient of one process."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    not_run,
)

RULE = Rule(
    name="gradient-depends-on-ranks",
    code="VT715",
    summary=(
        "The gradient of a step on two ranks of the recipe's engine is not that of one process."
    ),
    holds="The gradient of a step on two ranks is that of one process.",
    why=(
        "A rank's share that is weighed by its rows in the place of its tokens, or a rank without"
        " images that is left out, is no error (transformers#34242, verl#5881)."
    ),
    bad="each rank's mean loss, averaged over ranks",
    good="the summed loss, divided by the supervised tokens of all ranks",
    fix=SHIPPED_PASS + "compare with engine=ddp: what differs then is the engine or its settings.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the gradients of two steps on all ranks with the reference.

    In the first step the ranks share all rows; in the second one rank 0 has all images.
    """
    from vtool.verification import rounding, steps

    # On every rank: where it cannot be computed, no rank may wait for another one.
    expected, allowed = context.reference.gradient, context.reference.tolerances
    found, what = [], ""
    for case in ("rows shared out", "images on one rank alone"):
        session, progress = context.open(
            micro_batch_size=2, packing="none", micro_batch_tokens=None
        )
        what = (
            f"gradient of a step of {len(context.rows)} rows{steps.on_engine(session)}, shared out,"
            " and with text alone on all but the first"
        )
        batches = None
        if case != "rows shared out":
            images, texts = context.rows_with_images(), context.rows_without_images()
            batches = steps.split_between_ranks(context, session, images, texts)
        step = steps.take_step(session, progress, batches)
        if context.ranks.rank == 0:
            found += rounding.tensor_distances(step.gradients, expected, allowed, case)
    if context.ranks.rank:
        return not_run(RULE, what, "")  # gradients are gathered on rank 0
    return check_differences(
        RULE, what, found, "the gradient of a step depends on how many ranks compute it"
    )


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The gradient",
    method=(
        "On two processes of the recipe's engine: rows shared out, and with all images on the"
        " first process, so that the other one's share is text alone."
    ),
    catches=(
        "each rank's own tokens as divisor (transformers#34242), a rank without images that hangs"
        " or is left out (verl#5881)."
    ),
    upstream="transformers#34242",
    fast=False,
    on_ranks=True,
)
