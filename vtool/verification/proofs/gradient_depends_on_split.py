"""Proof that the gradient of a step does not depend on how its rows are cut into micro-batches."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    list_first,
)

RULE = Rule(
    name="gradient-depends-on-split",
    code="VT713",
    summary="The gradient of a step depends on how its rows are cut into micro-batches.",
    holds="The gradient of a step is the same however its rows are cut into micro-batches.",
    why=(
        "A mean of means weighs rows of few tokens more: the same recipe trains something else on"
        " another number of GPUs or with another micro-batch size (LLaMA-Factory#7443,"
        " transformers#37766)."
    ),
    bad="the mean loss of each micro-batch, averaged over micro-batches",
    good="the summed loss of each micro-batch, divided by the supervised tokens of the whole step",
    fix=SHIPPED_PASS
    + "its model computes a row differently next to other rows. `vtool verify RECIPE --only"
    " padding-changes-row` shows more.",
)
DEPENDS = (
    "the gradient of a step is not Σ over its rows of ∂NLL, divided by their supervised tokens"
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the gradients of a step in micro-batches of 1, 2 and all rows with the reference."""
    from vtool.verification import steps

    sizes = sorted({1, 2, len(context.rows)})
    what = (
        f"gradient of a step of {len(context.rows)} rows in micro-batches of"
        f" {list_first([str(size) for size in sizes])}, against its rows'"
    )
    unpacked = {"packing": "none", "micro_batch_tokens": None}
    cases = {f"micro-batches of {size}": {"micro_batch_size": size, **unpacked} for size in sizes}
    return check_differences(RULE, what, steps.compare_gradients(context, cases), DEPENDS)


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The gradient",
    method=(
        "A step in micro-batches of one, of two and of all rows: each gradient against ∂(ΣNLL)/N"
        " of the reference, tensor by tensor."
    ),
    catches="a mean of means (LLaMA-Factory#7443, transformers#37766).",
    upstream="transformers#37766",
)
