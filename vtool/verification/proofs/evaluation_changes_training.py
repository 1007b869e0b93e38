"""Proof that an evaluation between two steps leaves the training as it was."""

from collections.abc import Iterator
from typing import Any

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    failed,
    list_first,
)

_TOKENS = 4
"""Tokens of a greedy answer, at most."""

RULE = Rule(
    name="evaluation-changes-training",
    code="VT727",
    summary="A step after an evaluation is not, to the bit, the step without one.",
    holds="An evaluation between two steps leaves the training as it is without one.",
    why=(
        "A model that stays in evaluation mode trains on without dropout, and how well it learns"
        " depends on how often it is evaluated (simpletransformers#941, marin#7712)."
    ),
    bad="model.eval(), and no model.train() behind the evaluation",
    good="each module as it was before, with its weights, its optimizer state and its gradients",
    fix=SHIPPED_PASS
    + "look at what its class keeps from one forward pass to the next, and what `generate` sets.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare a second step with one that an evaluation comes before."""
    import torch

    from vtool.training.session import evaluate_split
    from vtool.verification import steps
    from vtool.verification.proof_settings import update_section

    generate = context.run.evaluation.generate
    shorter = {"max_new_tokens": min(generate.max_new_tokens, _TOKENS)}
    run = update_section(context.run, "evaluation", generate=generate.model_copy(update=shorter))

    def second_step(*, evaluated: bool) -> tuple[dict[str, torch.Tensor], list[str]]:
        """Return the numbers of a run's second step, and the switches that changed before it."""
        session, progress = context.open(run=run)
        steps.take_step(session, progress)
        switches = dict(_switches(session.engine.module))
        if evaluated:
            evaluate_split(session, "train")
        # Compared at the end: a rank that returned here alone would leave the others waiting.
        changed = [
            f"{name} ({switches.get(name)} → {value})"
            for name, value in _switches(session.engine.module)
            if switches.get(name) != value
        ]
        step = steps.take_step(session, progress, step=2)
        numbers = {
            "the loss of step 2": torch.tensor(step.loss),
            "torch's random state": torch.get_rng_state(),
            **{f"the gradient of {name}": one for name, one in step.gradients.items()},
        }
        return numbers | steps.copy_training_state(session), changed

    expected, _ = second_step(evaluated=False)
    there, changed = second_step(evaluated=True)
    world = context.ranks.world
    what = (
        "a second step after an evaluation, against the step without one"
        f"{f', on {run.engine.kind} with {world} processes' if world > 1 else ''}"
    )
    if changed:
        return failed(RULE, what, f"an evaluation has changed {list_first(changed)}")
    if missing := sorted(expected.keys() ^ there.keys()):
        message = f"only with an evaluation, or only without one, there is {list_first(missing)}"
        return failed(RULE, what, message)
    found = [
        Difference(name, float((one.double() - there[name].double()).abs().max()), 0.0)
        for name, one in expected.items()
        if one.numel()
    ]
    return check_differences(RULE, what, found, "an evaluation has changed the step after it")


def _switches(module: Any) -> Iterator[tuple[str, bool]]:
    """Yield the switches of a model that decide how it computes, by name."""
    for name, part in module.named_modules():
        for switch in ("training", "gradient_checkpointing"):
            if isinstance(value := getattr(part, switch, None), bool):
                yield f"{name or 'the model'}.{switch}", value
    for name, parameter in module.named_parameters():
        yield f"{name}.requires_grad", parameter.requires_grad


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="Steps",
    method=(
        "Two steps, and two steps with an evaluation between them, NLL and greedy answers: the"
        " second has the same loss, gradients, weights, optimizer state and random numbers to the"
        " bit, and each module is in the mode that it was in before."
    ),
    catches=(
        "a model that stays in evaluation mode (simpletransformers#941); an evaluation after which"
        " the loss is another (marin#7712)."
    ),
    upstream="simpletransformers#941",
    on_ranks=True,
)
