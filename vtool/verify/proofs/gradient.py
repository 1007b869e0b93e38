"""Proofs of the gradient of a step:

however it is cut, packed or padded out, it is that of its rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vtool.data.collate import Batch
from vtool.data.loader import load_steps
from vtool.diagnostics import Findings
from vtool.engines.contract import Engine
from vtool.training.session import Progress, Session
from vtool.training.step import train_step
from vtool.training.stop import StopRequest
from vtool.verify.proofs.context import ONE_ROW, ProofContext
from vtool.verify.proofs.proof import Difference, Proof, failed, held, listed
from vtool.verify.proofs.rounding import differences

Allowed = Mapping[str, float]
DEPENDS = (
    "the gradient of a step is not Σ over its rows of ∂NLL, divided by their supervised tokens"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that has been taken."""

    loss: float
    supervised: int
    gradients: dict[str, Tensor]
    """Before clipping; on rank 0."""


class _Watched:
    """An engine, and the gradients that it had when they were to be clipped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.taken: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def clip_gradient(self, largest: float | None) -> float:
        self.taken = self._engine.gradients()
        return self._engine.clip_gradient(largest)


def take(
    session: Session, progress: Progress, batches: Sequence[Batch] | None = None, step: int = 1
) -> Taken:
    """One step of the training loop.

    `batches`: this rank's micro-batches; else those of the run's own plan.
    """
    watched: Any = _Watched(session.engine)
    if batches is None:
        batches = next(
            load_steps(session.rows["train"], range(step, step + 1), session.micro_batches, 0)
        )
    metrics, _ = train_step(
        replace(session, engine=watched), progress, step, batches, StopRequest()
    )
    return Taken(metrics["loss"], metrics["supervised_tokens"], watched.taken)


def split(context: ProofContext, wanted: Mapping[str, Tensor], allowed: Allowed) -> Proof:
    """`gradient-depends-on-split`: however many rows a micro-batch has."""
    sizes = sorted({1, 2, len(context.rows)})
    rule = "gradient-depends-on-split"
    what = (
        f"gradient of a step of {len(context.rows)} rows in micro-batches of"
        f" {listed([str(size) for size in sizes])}, against its rows'"
    )
    found: list[Difference] = []
    for size in sizes:
        taken = take(*context.open(micro_batch_size=size, packing="none", micro_batch_tokens=None))
        found += differences(taken.gradients, wanted, allowed, f"micro-batches of {size}")
    return held(rule, what, found, DEPENDS)


def packing(context: ProofContext, wanted: Mapping[str, Tensor], allowed: Allowed) -> Proof:
    """`gradient-depends-on-packing`: rows that share a row, all of them and two by two."""
    rule, what = (
        "gradient-depends-on-packing",
        f"gradient of {len(context.rows)} rows packed, against its rows'",
    )
    if not context.packs:
        return Proof(rule, what, "not-run", reason=context.packs_not)
    if len(context.rows) < 2:
        return Proof(rule, what, "not-run", reason=ONE_ROW)
    found: list[Difference] = []
    for budget in sorted({sum(context.lengths), max(context.lengths)}):
        taken = take(*context.open(**context.packing | {"micro_batch_tokens": budget}))
        found += differences(taken.gradients, wanted, allowed, f"packed to {budget} tokens")
    return held(rule, what, found, DEPENDS)


def dummy(context: ProofContext) -> Proof:
    """`dummy-not-neutral`: of rows without images, with the dummy visual forward and without: the
    same loss and gradients to the bit, and finite gradients of 0 in the trained tower; also where
    the tower gives NaN, for 0 · NaN is NaN.
    """
    rule, what = (
        "dummy-not-neutral",
        "loss and gradients of a step of text alone, with the dummy visual forward and without",
    )
    places = context.without_images()
    if not places:
        return Proof(rule, what, "not-run", reason="no row could be made that has no image")
    with_it, without = (_text_only(context, places, dummy=name) for name in ("always", "never"))
    changed = with_it.loss != without.loss
    if changed or (spoilt := _spoilt(context, places)):
        message = (
            f"the dummy visual forward changes the loss of a step from {without.loss!r} to"
            f" {with_it.loss!r}"
        )
        return failed(
            rule,
            what,
            (
                message
                if changed
                else (
                    f"where the tower gives NaN, so does the dummy visual forward: {listed(spoilt)}"
                )
            ),
        )
    trained = {
        name
        for group in context.open()[0].engine.optimizer_groups()
        for name in (one.name for one in group.members)
    }
    tower = {name for name in trained if context.family.component(name) != "language"}
    for name in sorted(tower):
        gradient = with_it.gradients.get(name)
        if gradient is None:
            return failed(
                rule,
                what,
                f"{name} gets no gradient from the dummy visual forward: other ranks would wait"
                " for it",
            )
        if not bool(torch.isfinite(gradient).all()) or bool(gradient.any()):
            largest = float(gradient.abs().max())
            return failed(
                rule,
                what,
                f"{name} gets a gradient of up to {largest:.2g} from the dummy visual forward, and"
                " 0 is right",
            )
    found = []
    for name in without.gradients.keys() | (with_it.gradients.keys() - tower):
        one, other = with_it.gradients.get(name), without.gradients.get(name)
        if one is None or other is None:
            return failed(
                rule,
                what,
                f"{name} has a gradient {'without' if one is None else 'with'} the dummy visual"
                " forward only",
            )
        if name not in tower:
            found.append(Difference(name, float((one - other).abs().max()), 0.0))
    return held(
        rule,
        what,
        found or [Difference("the loss", 0.0, 0.0)],
        "the dummy visual forward changes gradients",
    )


def _spoilt(context: ProofContext, places: list[int]) -> list[str]:
    """What is not finite in a step whose dummy visual forward goes through a tower that gives NaN."""
    try:
        taken = _text_only(context, places, dummy="always", nan=True)
    except Findings as findings:  # the loop looks at loss and norm itself
        return [finding.rule for finding in findings.diagnostics]
    return [
        name
        for name, gradient in taken.gradients.items()
        if not bool(torch.isfinite(gradient).all())
    ]


def _text_only(context: ProofContext, places: list[int], *, dummy: str, nan: bool = False) -> Taken:
    run = context.run.model_copy(
        update={"model": context.run.model.model_copy(update={"dummy_visual": dummy})}
    )
    session, progress = context.open(run=run)
    if nan:
        for parameter in context.family.tower(session.engine.module)[0].parameters():
            parameter.data.fill_(torch.nan)
    return take(session, progress, [context.batch(session, places)])
