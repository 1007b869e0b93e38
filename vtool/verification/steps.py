"""Training steps and forward passes of a small run, as proofs make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vtool.data.collate import Batch, filler
from vtool.data.loader import load_steps
from vtool.data.packing import with_positions
from vtool.engines.contract import Engine
from vtool.models.adapters import is_adapter_name
from vtool.training.session import Progress, Session
from vtool.training.step import train_step
from vtool.training.stop import StopRequest
from vtool.verification.context import ProofContext
from vtool.verification.proofs.proof import Difference
from vtool.verification.rounding import tensor_distances


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of a training step."""

    loss: float
    supervised: int
    gradients: dict[str, Tensor]
    """Before clipping, by names in files; on rank 0."""


class _GradientRecorder:
    """An engine that keeps the gradients that it had when they were to be clipped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.gradients_before_clipping: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def clip_gradient(self, largest: float | None) -> Tensor:
        self.gradients_before_clipping = self._engine.gradients()
        return self._engine.clip_gradient(largest)


def take_step(
    session: Session, progress: Progress, batches: Sequence[Batch] | None = None, step: int = 1
) -> StepNumbers:
    """Make one step of the training loop.

    Args:
        batches: this rank's micro-batches; by default those of the run's own plan.
    """
    recorder: Any = _GradientRecorder(session.engine)
    if batches is None:
        batches = next(
            load_steps(session.rows["train"], range(step, step + 1), session.micro_batches, 0)
        )
    metrics, _ = train_step(
        replace(session, engine=recorder), progress, step, batches, StopRequest()
    )
    return StepNumbers(
        metrics["loss"], metrics["supervised_tokens"], recorder.gradients_before_clipping
    )


def compare_gradients(
    context: ProofContext, cases: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """Compare the gradient of a step with the reference's, in each case.

    Args:
        cases: by the name of a case, settings of `data` that replace the run's.
    """
    reference, found = context.reference, []
    for case, data in cases.items():
        step = take_step(*context.open(**data))
        found += tensor_distances(step.gradients, reference.gradient, reference.tolerances, case)
    return found


def compute_logits(session: Session, batch: Batch) -> Tensor:
    """Return the logits [B, L, V] of all tokens of a micro-batch, as the run computes them."""
    batch = with_positions(batch, session.engine.module)
    with torch.no_grad(), session.engine.autocast():
        logits: Tensor = session.engine.module(**batch.arguments(), use_cache=False).logits
    return logits


def split_between_ranks(
    context: ProofContext, session: Session, first: list[int], others: list[int] | None = None
) -> list[Batch]:
    """Return this rank's micro-batches, of two rows at most.

    Args:
        first: rows of rank 0; without `others`, of all ranks in turn.
        others: rows of the ranks after it.
    """
    data = session.engine.data
    if others is None:
        rows = first[data.rank :: data.world]
    elif data.world == 1:
        rows = first + others
    else:
        rows = first if data.rank == 0 else others[data.rank - 1 :: data.world - 1]
    batches = [context.batch(session, rows[start : start + 2]) for start in range(0, len(rows), 2)]
    return batches or [filler(context.batch(session, (others or first)[:1]))]


def copy_weights(session: Session) -> dict[str, Tensor]:
    """Copy all weights of the model, adapters and their base; every rank must call it."""
    kinds = ("none", "only") if session.run.lora is not None else ("merged",)
    return {
        name: tensor.detach().clone()
        for kind in kinds
        for name, tensor in session.engine.iter_hf_weights(kind)  # type: ignore[arg-type]
    }


def copy_optimizer_state(session: Session) -> dict[str, Tensor]:
    """Copy all tensors of the optimizer's state; every rank must call it."""
    return {name: tensor.detach().clone() for name, tensor in session.engine.optimizer_state()}


def copy_training_state(session: Session) -> dict[str, Tensor]:
    """Copy all weights and the optimizer's state; every rank must call it."""
    state = copy_optimizer_state(session)
    return copy_weights(session) | {f"the optimizer's {name}": one for name, one in state.items()}


def is_of_tower(context: ProofContext, name: str) -> bool:
    """Return whether a tensor, by its name in files, is of the vision tower or its projector."""
    return context.family.component(_without_prefix(name)) != "language"


def is_trained(context: ProofContext, name: str) -> bool:
    """Return whether the settings ask for a tensor, by its name in files, to be trained."""
    if context.run.lora is not None and not is_adapter_name(name):
        return False
    name = _without_prefix(name)
    if name in context.family.unreached(context.bare) or name in dict(context.bare.named_buffers()):
        return False
    return not getattr(context.run.model.freeze, context.family.component(name))


def _without_prefix(name: str) -> str:
    return name.removeprefix("base_model.model.")


def on_engine(session: Session) -> str:
    """Return ", on fsdp2 with 2 processes", or nothing for one process."""
    world = session.ranks.world
    return "" if world == 1 else f", on {session.run.engine.kind} with {world} processes"
