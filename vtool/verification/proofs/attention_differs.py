"""Proof that the chosen attention computes what transformers' plain one does."""

from vtool.config.attention import NOT_ON_CPU
from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    not_run,
)

RULE = Rule(
    name="attention-differs",
    code="VT722",
    summary="The chosen attention computes something else than transformers' plain one.",
    holds="The chosen attention computes what transformers' plain one does.",
    why=(
        "A kernel that ignores a mask, a scale or grouped heads raises nothing; nor does one that"
        " lets tokens see what they are to predict (transformers#48769)."
    ),
    bad="an attention implementation that takes no mask",
    good="the same logits as with model.attention=eager, up to rounding",
    fix="Set model.attention=eager, and report it with the versions of torch and transformers.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the logits of each row by itself with those that eager attention gives."""
    from vtool.verification import reference, rounding

    chosen = context.run.model.attention
    what = f"logits with model.attention={chosen} against eager"
    if chosen == "eager":
        return not_run(RULE, what, "model.attention is eager")
    if chosen in NOT_ON_CPU:
        return not_run(RULE, what, f"there is no {chosen} on a CPU; here sdpa is in its place")
    expected, allowed = context.reference.logits, context.reference.tolerances
    model = context.model()
    model.set_attn_implementation("eager")  # type: ignore[operator]
    found = rounding.tensor_distances(reference.row_logits(context, model), expected, allowed)
    return check_differences(RULE, what, found, "attention computes something else")


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The forward pass",
    method="The chosen `model.attention` against transformers' plain one.",
    catches=(
        "with sdpa, a module that does not say that it is causal, so that tokens see what they are"
        " to predict (transformers#48769)."
    ),
    upstream="transformers#48769",
)
