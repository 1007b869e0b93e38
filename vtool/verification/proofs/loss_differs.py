"""Proof that the loss of a step, and of an evaluation, is that of its rows."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
)

RULE = Rule(
    name="loss-differs",
    code="VT723",
    summary=(
        "The loss of a step, its number of supervised tokens, or the NLL of an evaluation is not"
        " that of its rows."
    ),
    holds="The loss, the number of supervised tokens and the NLL are those of the rows.",
    why=(
        "Targets that are shifted twice or not at all, or a loss divided by the wrong number,"
        " still falls (verl#3287, trl#3091)."
    ),
    bad="logits[:, :-1] against labels that have already been shifted",
    good="−log p of token t + 1 given those up to t, summed and divided once",
    fix=SHIPPED_PASS + "report it with this line.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare loss and N of a step, and the NLL of an evaluation, with the reference."""
    import torch

    from vtool.evaluation.evaluate import mean_nll
    from vtool.verification import reference, rounding, steps

    rows = range(len(context.rows))
    what = (
        f"the loss of a step and of an evaluation of {len(rows)} rows against −log p of each"
        " supervised token, in float64"
    )
    logits, tolerances = context.reference.logits, context.reference.tolerances
    session, progress = context.open(micro_batch_size=2)
    with session.engine.evaluating(), torch.no_grad():
        evaluated = mean_nll(session.engine, session.rows["train"], rows, batch_size=2)
    step = steps.take_step(session, progress)
    expected = reference.mean_loss(context, logits)
    # A mean of NLLs may differ by what rounding does to the logits of one row, divided by N.
    allowed = max(
        rounding.ROUNDING * expected, max(tolerances[name] for name in logits) / context.supervised
    )
    tokens = float(abs(step.supervised - context.supervised))
    found = [
        Difference("the loss", abs(step.loss - expected), allowed),
        Difference("the NLL of an evaluation", abs(evaluated - expected), allowed),
        Difference("the number of supervised tokens", tokens, 0.0),
    ]
    return check_differences(RULE, what, found, "the loss of a step is not that of its rows")


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The forward pass",
    method=(
        "The loss and the N that a step reports, and the NLL of an evaluation, against the"
        " reference."
    ),
    catches="targets shifted twice (trl#3091), a mean of another number of tokens.",
    upstream="verl#5362",
)
