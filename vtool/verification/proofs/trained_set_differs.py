"""Proof that steps change the parameters that the recipe trains, and no others."""

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
    name="trained-set-differs",
    code="VT717",
    summary="Two steps change other parameters than those that the recipe trains.",
    holds="Two steps change the parameters that the recipe trains, and no other.",
    why=(
        "A frozen tower that is trained, or an adapter that is in no optimizer, raises nothing"
        " (LLaMA-Factory#10139, ms-swift#2640; verl's freeze_vision_tower was read by nothing)."
    ),
    bad="model.freeze.vision=true, and a tower that changes",
    good="model.freeze.vision=true, and a tower that stays as it is to the byte",
    fix=SHIPPED_PASS
    + "a parameter that gets no gradient at all is one that the model does not use for these rows.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the parameters that two steps change with those that the settings train."""
    from vtool.verification import steps

    session, progress = context.open()
    what = f"which parameters two steps change{steps.on_engine(session)}"
    before = steps.copy_weights(session)
    for step in (1, 2):
        steps.take_step(session, progress, step=step)
    after = steps.copy_weights(session)
    changed = {name for name in before if not before[name].equal(after[name])}
    declared = {name for name in before if steps.is_trained(context, name)}
    if unasked := sorted(changed - declared):
        return failed(
            RULE,
            what,
            f"two steps have changed {list_first(unasked)}, which the recipe does not train",
        )
    if unchanged := sorted(declared - changed):
        no_image = "" if context.rows_with_images() else "no row has an image"
        if no_image and all(steps.is_of_tower(context, name) for name in unchanged):
            return not_run(
                RULE, what, f"the tower is trained, and of the rows looked at {no_image}"
            )
        message = f"two steps have not changed {list_first(unchanged)}, which the recipe trains"
        return failed(RULE, what, f"{message}; {no_image}" if no_image else message)
    return passed(RULE, what)


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="Steps",
    method=(
        "After two steps the parameters that have changed are those that `model.freeze` and `lora`"
        " say, and no others."
    ),
    catches=(
        "`freeze_vision_tower` that nothing reads (verl), frozen parts that are trained"
        " (LLaMA-Factory#10139, ms-swift#2640). It has caught a tower's level in our own tiny"
        " Qwen3-VL that no token could see."
    ),
    upstream="sparseml#966",
    on_ranks=True,
)
