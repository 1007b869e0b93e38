"""Proof that the gradient of packed rows is that of the rows."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.gradient_depends_on_split import DEPENDS
from vtool.verification.proofs.proof import (
    ONE_ROW,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    not_run,
)

RULE = Rule(
    name="gradient-depends-on-packing",
    code="VT714",
    summary="The gradient of packed rows is not that of the rows.",
    holds="The gradient of packed rows is that of the rows.",
    why=(
        "Positions that continue from one document into the next, or targets across their border,"
        " train on chats that nobody wrote (transformers#39400, axolotl#3817)."
    ),
    bad="position_ids = arange(length) over all documents of a row",
    good="position_ids that begin again in each document, in three dimensions for images",
    fix="Set data.packing=none, and report it with this line.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the gradients of rows packed all together, and two by two, with the reference."""
    from vtool.verification import steps

    what = f"gradient of {len(context.rows)} rows packed, against its rows'"
    if not context.can_pack:
        return not_run(RULE, what, context.no_packing)
    if len(context.rows) < 2:
        return not_run(RULE, what, ONE_ROW)
    cases = {
        f"packed to {budget} tokens": context.packing | {"micro_batch_tokens": budget}
        for budget in sorted({sum(context.lengths), max(context.lengths)})
    }
    return check_differences(RULE, what, steps.compare_gradients(context, cases), DEPENDS)


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The gradient",
    method=(
        "The same of rows that share a row, all of them and two by two. Not run where the family"
        " cannot be packed (Qwen3.5, whose states continue from one document into the next)."
    ),
    catches=(
        "positions that are a range, for want of M-RoPE's (axolotl#3817, Automodel#2172); a mask"
        " of ones, which turns the detection of packing off (transformers#46634)."
    ),
    upstream="transformers#46634",
)
