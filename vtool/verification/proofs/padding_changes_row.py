"""Proof that a row's logits do not depend on the padding next to it."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    ONE_ROW,
    SHIPPED_PASS,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    not_run,
)

RULE = Rule(
    name="padding-changes-row",
    code="VT712",
    summary="A row's logits depend on the padding next to it.",
    holds="A row's logits are the same with and without padding next to it.",
    why=(
        "A mask of the wrong polarity, shape or side is no error: attention is paid to padding,"
        " and less to the row (verl#5904, verl#5942)."
    ),
    bad="attention_mask with 1 where there is padding",
    good="attention_mask with 0 where there is padding",
    fix=SHIPPED_PASS
    + "the attention implementation does not heed the mask that it is given. Compare with"
    " model.attention=eager.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare logits of rows padded right, as in training, and left, as for answers."""
    import torch

    from vtool.data.collate import collate_prompts
    from vtool.data.encode import Prompt
    from vtool.verification import reference, rounding, steps

    dropped = context.run.data.drop_model_inputs
    # Without a mask, answers are asked for one by one, and nothing is padded on the left.
    masked = "attention_mask" not in dropped
    what = (
        f"logits of {len(context.rows)} rows in one batch, padded"
        f" {'right and left' if masked else 'right'}, against each by itself"
    )
    if len(context.rows) < 2:
        return not_run(RULE, what, ONE_ROW)
    expected, allowed = context.reference.logits, context.reference.tolerances
    session, _ = context.open()
    right = steps.compute_logits(session, context.batch(session, range(len(context.rows))))
    padded = [("padded right", right, 0)]
    if masked:
        prompts = [Prompt(one.index, one.input_ids, one.visuals, "") for one in context.samples]
        inputs = collate_prompts(prompts, context.processor, dropped)
        with torch.no_grad(), session.engine.autocast():
            left = session.engine.module(**inputs, use_cache=False).logits
        padded.append(("padded left", left, left.shape[1]))
    found = []
    for row, length in enumerate(context.lengths):
        name = reference.row_name(row)
        for case, logits, end in padded:
            ours = logits[row, max(0, end - length) : end or length]
            found += rounding.tensor_distances({name: ours}, {name: expected[name]}, allowed, case)
    return check_differences(RULE, what, found, "a row's logits depend on the rows next to it")


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The forward pass",
    method=(
        "A row's logits in a batch padded on the right, as in training, and on the left, as for"
        " answers, against the row by itself."
    ),
    catches="masks of the wrong polarity or shape (verl#5904, verl#5942).",
    upstream="transformers#38094",
)
