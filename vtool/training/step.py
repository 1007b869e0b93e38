"""One optimizer step over the global batch."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vtool.data.collate import Batch
from vtool.data.loss import summed_nll
from vtool.data.packing import with_positions
from vtool.devices import seed
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import SharedFindings
from vtool.engines.spans import Span, null_span
from vtool.models.dummy_visual import dummy_visual_forward
from vtool.models.joint_vision import joint_vision_forward
from vtool.training.session import Progress, Session
from vtool.training.stop import StopRequest

STEP_RULES = ("no-supervised-tokens", "nonfinite-loss", "nonfinite-gradient")
"""The rules that every step is checked by."""


def train_step(
    session: Session,
    progress: Progress,
    step: int,
    batches: Sequence[Batch],
    stop: StopRequest,
    span: Span = null_span,
    waited: float = 0.0,
) -> tuple[dict[str, Any], int | None]:
    """Take one optimizer step over the global batch, and count its rows in `progress`.

    Args:
        step: from 1.
        batches: this rank's micro-batches.
        span: marks the parts of a step for a profiler.
        waited: seconds that this rank has waited for its micro-batches.

    Returns:
        The step's metrics, and the signal by which any rank was asked to stop.

    Raises:
        SharedFindings: one of `STEP_RULES`, or `micro-batch-without-image`, naming the rows.
    """
    run, ranks, engine, data = session.run, session.ranks, session.engine, session.engine.data
    # Anything random in a step depends on the seed, the step and the rank alone: a resumed run
    # needs no generator's state.
    random = np.random.SeedSequence([run.run.seed, step, data.rank])
    seed(ranks.device, int(random.generate_state(1)[0]))
    # positions on the CPU: a device would be asked for the sizes of each document
    batches = [with_positions(batch, engine.module).to(ranks.device) for batch in batches]

    # What every rank must know of all ranks before the first backward. Videos count as images.
    text_only = [batch for batch in batches if not batch.images]
    counts = np.array(
        ranks.all_gather(
            [
                sum(batch.supervised for batch in batches),
                sum(batch.images for batch in batches),
                len(text_only),
                stop.signal or 0,
                waited,
            ]
        )
    )
    sharing = ranks.world // data.world  # ranks that compute the same rows, and count them all
    supervised, images, without_image = (int(total) // sharing for total in counts[:, :3].sum(0))
    signal = int(counts[:, 3].max()) or None
    if supervised == 0:
        message = f"step {step} has no supervised token on any rank"
        raise _failure(session, "no-supervised-tokens", message, batches)
    dummy_visual = run.model.dummy_visual
    if dummy_visual == "never" and images and without_image and data.world > 1:
        message = (
            f"model.dummy_visual is never, but of the micro-batches of step {step} some have images"
            f" and {without_image} have none"
        )
        raise _failure(session, "micro-batch-without-image", message, text_only)

    dummy = dummy_visual == "always" or (dummy_visual == "auto" and images > 0)
    losses = engine.forward_backward(
        batches,
        micro_batch_nll(session, dummy=dummy),
        supervised,
        every_parameter=dummy or without_image == 0,  # then DDP may wait for all of them
        span=span,
    )
    with span("optimizer"):  # clipping is timed with the update
        norm = engine.clip_gradient(run.optim.clip_norm)
    nlls, grad_norm = _read(losses, norm)

    # What each rank has done, not what it was meant to do: its ΣNLL, its tokens, and the rows that
    # were in its batches, filled up with -1 to the number that a rank has at most.
    rows = [index for batch in batches for index in batch.indices]
    padding = [-1] * (-(-run.data.global_batch_size // data.world) - len(rows))
    tokens = [
        sum(getattr(batch, kind) for batch in batches) for kind in ("tokens", "visual", "padding")
    ]
    gathered = data.all_gather([sum(nlls), *tokens, *rows, *padding])
    loss = sum(nll for nll, *_ in gathered) / supervised
    if not math.isfinite(loss):
        broken = [
            batch for batch, value in zip(batches, nlls, strict=True) if not math.isfinite(value)
        ]
        raise _failure(session, "nonfinite-loss", f"the loss of step {step} is {loss}", broken)
    if not math.isfinite(grad_norm):
        message = f"the gradient's norm in step {step} is {grad_norm}, its loss {loss:.4g}"
        raise _failure(session, "nonfinite-gradient", message, batches)

    lr = session.rate(step)
    with span("optimizer"):
        engine.optimizer_step(lr)
    trained = [int(row) for _, _, _, _, *own_rows in gathered for row in own_rows if row >= 0]
    visits = progress.visits.numpy()  # always in the CPU's memory
    np.add.at(visits, trained, 1)
    metrics = {
        "step": step,
        "epoch": session.plan.epoch(step),
        "loss": loss,
        "grad_norm": grad_norm,
        "lr": lr,
        "tokens": int(sum(own[1] for own in gathered)),
        "supervised_tokens": supervised,
        "visual_tokens": int(sum(own[2] for own in gathered)),
        "padding_tokens": int(sum(own[3] for own in gathered)),
        "samples": len(trained),
        "data_seconds": float(counts[:, 4].max()),  # every rank waits for the slowest
        "distinct_samples": int(np.count_nonzero(visits)),
    }
    return metrics, signal


def _read(losses: Tensor, norm: Tensor) -> tuple[list[float], float]:
    """Return the losses and the norm as numbers.

    The only place of a step that waits for the device: all else has been queued before.
    """
    *nlls, grad_norm = torch.cat([losses.double(), norm.to(losses.device).double()[None]]).tolist()
    return nlls, grad_norm


def micro_batch_nll(
    session: Session, *, dummy: bool
) -> Callable[[Callable[..., Any], Batch], Tensor]:
    """Return the function that computes a micro-batch's summed NLL (`vtool.data.loss`).

    Args:
        dummy: a micro-batch without an image runs the vision tower on zeros, for a gradient of 0.
    """
    family, module = session.family, session.engine.module
    indexer = session.rows["train"].tower
    known = family.computes_as_known(module)

    def nll(model: Callable[..., Any], batch: Batch) -> Tensor:
        vision: AbstractContextManager[None] = nullcontext()
        if dummy and not batch.images:
            vision = dummy_visual_forward(family, module, indexer)
        elif {"pixel_values", "pixel_values_videos"} <= batch.inputs.keys():
            vision = joint_vision_forward(family, module)
        with vision:
            return summed_nll(model, batch, module if known else None)

    return nll


def _failure(session: Session, rule: str, message: str, batches: Sequence[Batch]) -> SharedFindings:
    """Return the finding that ends the run, with the rows that every rank had in these batches."""
    rows = session.rows["train"].rows
    own = [rows.name(index) for batch in batches for index in batch.indices]
    names = [name for share in session.engine.data.all_gather_objects(own) for name in share]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return SharedFindings(Diagnostic(rule, f"{message}; its rows: {', '.join(names[:8])}{more}"))
