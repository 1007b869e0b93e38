"""Proof that a run that resumes from a checkpoint is the run that was never stopped."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    failed,
)

RULE = Rule(
    name="resume-differs",
    code="VT720",
    summary=(
        "A run that resumes from a checkpoint is not, to the bit, the run that was never stopped."
    ),
    holds="A run that resumes from a checkpoint is, to the bit, one that was never stopped.",
    why=(
        "Optimizer state, a step count or a buffer that is not in the checkpoint changes every"
        " step after it (verl#7401, ms-swift#10050)."
    ),
    bad="a checkpoint without the optimizer's state",
    good="a checkpoint of weights, optimizer state and step",
    fix=SHIPPED_PASS + "report it with the name in this line.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare two steps in one run with one step, a checkpoint, and one step in a new run."""
    from vtool.training import checkpoint
    from vtool.training.session import restore_checkpoint, snapshot
    from vtool.verification import steps

    straight, progress = context.open()
    what = (
        "weights and optimizer state after two steps, against a checkpoint between"
        f" them{steps.on_engine(straight)}"
    )
    steps.take_step(straight, progress)
    progress.step = 1
    saved = snapshot(straight, progress)
    # each rank has a folder of its own
    folder = context.ranks.on_rank_zero(lambda: context.folder / "checkpoints")
    path = checkpoint.save(folder, saved, 1, ranks=context.ranks)
    first = steps.take_step(straight, progress, step=2)
    expected = steps.copy_training_state(straight)
    resumed, _ = context.open()
    restored = restore_checkpoint(resumed.engine, path)
    # Gathered from all ranks: one that returned here alone would leave the others waiting.
    planned, coming = (
        context.ranks.all_gather_objects([batch.rows for batch in session.micro_batches(step)])
        for session, step in ((straight, 2), (resumed, restored.step + 1))
    )
    if restored.step != 1 or planned != coming:
        return failed(
            RULE,
            what,
            f"after step 1 come rows {planned} in a run that was never stopped, and {coming} in"
            f" one that resumes from step {restored.step}",
        )
    second = steps.take_step(resumed, restored, step=restored.step + 1)
    visits = float((progress.visits - restored.visits).abs().max())
    found = [
        Difference("the loss of step 2", abs(first.loss - second.loss), 0.0),
        Difference("how often each row has been trained on", visits, 0.0),
    ]
    there = steps.copy_training_state(resumed)
    for name in expected.keys() | there.keys():
        if name not in expected or name not in there:
            return failed(
                RULE,
                what,
                f"{name} is {'not ' * (name not in there)}there after a resume, and"
                f" {'not ' * (name not in expected)}without one",
            )
        apart = float((expected[name].double() - there[name].double()).abs().max())
        found.append(Difference(name, apart, 0.0))
    return check_differences(
        RULE,
        what,
        found,
        "a run that resumes from a checkpoint is not the run that was never stopped",
    )


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="Steps",
    method=(
        "Two steps, and one step, a checkpoint on the disk, and the other step in a model and an"
        " engine that are new: its rows, counts, weights and optimizer state are the same to the"
        " bit."
    ),
    catches="state that is in no checkpoint (verl#7401, ms-swift#10050).",
    upstream="OpenNMT-py#617",
    fast=False,
    on_ranks=True,
)
