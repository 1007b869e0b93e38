"""Supervised fine-tuning.

`train` is a run from its start to its end, `_steps` its training loop, `train_step` one step of it.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vtool.data.collate import Batch
from vtool.data.loader import load_steps
from vtool.data.loss import summed_nll
from vtool.data.packing import with_positions
from vtool.devices import seed
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.engines.spans import Span, null_span
from vtool.evaluation.evaluate import evaluate
from vtool.models.dummy import adding_dummy
from vtool.models.one_pass import joint_vision_forward
from vtool.profiling.profiler import Profiler, open_profiler
from vtool.training.checkpoint import Writer
from vtool.training.display import Display
from vtool.training.finish import finish
from vtool.training.metrics import append
from vtool.training.read_back import check_arrival
from vtool.training.run_folder import RunFolder
from vtool.training.session import Progress, Request, Session, snapshot
from vtool.training.setup import set_up_run
from vtool.training.start import Start, find_start
from vtool.training.stop import StopRequest
from vtool.training.tracking import Trackers, open_trackers


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    folder: Path
    status: str
    """`finished`, `stopped`, or `already finished`."""
    step: int
    total_steps: int
    signal: int | None = None
    findings: tuple[Diagnostic, ...] = ()
    """What went wrong beside the training, and did not end it:

    of the profiler, of trackers and of evaluations.
    """


@dataclass(frozen=True, slots=True)
class Watchers:
    """What goes along with the loop."""

    writer: Writer
    stop: StopRequest
    display: Display
    trackers: Trackers
    profiler: Profiler
    findings: list[Diagnostic] = field(default_factory=list)
    """Of evaluations."""


def train(request: Request, ranks: Ranks) -> Outcome:
    """Train a run, from its beginning or from where it was. Every rank calls this; rank 0 writes
    and prints.

    Raises:
        Findings: whatever stands in the way. `SharedFindings` are raised by every rank alike.
    """
    folder = RunFolder(request.run.folder)
    ranks.on_rank_zero(folder.lock)
    try:
        return _train(request, folder, ranks)
    finally:
        folder.unlock()


def _train(request: Request, folder: RunFolder, ranks: Ranks) -> Outcome:
    start = ranks.on_rank_zero(lambda: find_start(folder, request.run, request.effective))
    if start.finished:
        steps = json.loads(folder.result.read_text())["steps"]
        return Outcome(folder.path, "already finished", steps, steps)
    session, progress = set_up_run(request, folder, start, ranks)
    check_arrival(session, request.origins)
    ranks.on_rank_zero(lambda: _rewind(folder, progress, start))
    if ranks.rank == 0:
        _announce(session, progress, start)
    settings = request.run.checkpoint
    with (
        StopRequest() as stop,
        Writer(
            folder.checkpoints, settings.keep_last, asynchronous=settings.asynchronous
        ) as writer,
        Display(progress.step, session.total_steps, silent=ranks.rank > 0) as display,
        open_profiler(
            request.run, ranks, folder.path, progress.step, session.total_steps, display.say
        ) as profiler,
        open_trackers(request, folder.path, progress.step, ranks) as trackers,
    ):
        watchers = Watchers(writer, stop, display, trackers, profiler)
        signal = _steps(session, progress, watchers)
        ranks.on_rank_zero(writer.wait)
    found = [*profiler.verify(), *trackers.findings, *watchers.findings]
    if signal is None:
        found += finish(session, progress, profiler.checks, found)
    return Outcome(
        folder.path,
        "stopped" if signal else "finished",
        progress.step,
        session.total_steps,
        signal,
        tuple(found),
    )


def _steps(session: Session, progress: Progress, watchers: Watchers) -> int | None:
    """The training loop.

    It ends after the last step, or after one before which any rank was asked to stop; then it
    returns the signal.
    """
    run = session.run
    steps = range(progress.step + 1, session.total_steps + 1)
    loaded = load_steps(session.rows["train"], steps, session.micro_batches, run.data.workers)
    for step in steps:
        span = watchers.profiler.begin(step)
        with span("train_batch"):
            began = time.perf_counter()
            with span("data"):
                batches = next(loaded)
            metrics, signal = train_step(session, progress, step, batches, watchers.stop, span)
            progress.step = step
            progress.seconds += time.perf_counter() - began
            metrics["seconds"] = progress.seconds
            if session.ranks.rank == 0:
                append(session.folder.metrics, metrics)
                watchers.trackers.log(metrics)
                watchers.display.step(metrics, time.perf_counter() - began)

            last = step == session.total_steps
            if "validation" in session.rows and (last or _due(step, run.evaluation.every_steps)):
                with span("evaluation"):
                    _validate(session, step, watchers)
            if last or signal or _due(step, run.checkpoint.every_steps):
                with span("checkpoint"):
                    _save(session, progress, watchers.writer)
        watchers.profiler.end(metrics)
        if signal and not last:
            return signal
    return None


def train_step(
    session: Session,
    progress: Progress,
    step: int,
    batches: Sequence[Batch],
    stop: StopRequest,
    span: Span = null_span,
) -> tuple[dict[str, Any], int | None]:
    """One optimizer step over the global batch.

    Returns its metrics, and the signal by which any rank has been asked to stop.
    """
    run, ranks, engine, data = session.run, session.ranks, session.engine, session.engine.data
    # Anything random in a step depends on the seed, the step and the rank alone: a run that goes on
    # needs no generator's state.
    seed(
        ranks.device,
        int(np.random.SeedSequence([run.run.seed, step, data.rank]).generate_state(1)[0]),
    )
    batches = [with_positions(batch.to(ranks.device), engine.module) for batch in batches]

    # What has to be known of all ranks before the first backward.
    text_only = [batch for batch in batches if not batch.images]
    mine = [
        sum(batch.supervised for batch in batches),
        sum(batch.images for batch in batches),
        len(text_only),
        stop.signal or 0,
    ]
    everyone = ranks.all_gather(mine)
    sharing = ranks.world // data.world  # ranks that compute the same rows, and count them all
    supervised, images, lacking = (
        int(sum(counts[place] for counts in everyone)) // sharing for place in (0, 1, 2)
    )
    agreed = int(max(counts[3] for counts in everyone)) or None
    if supervised == 0:
        raise _failure(
            session,
            "no-supervised-tokens",
            f"step {step} has no supervised token on any rank",
            batches,
        )

    wanted = run.model.dummy_visual
    if wanted == "never" and images and lacking and data.world > 1:
        message = (
            f"model.dummy_visual is never, but of the micro-batches of step {step} some have images"
            f" and {lacking} have none"
        )
        raise _failure(session, "micro-batch-without-image", message, text_only)
    dummy = wanted == "always" or (wanted == "auto" and images > 0)
    nll = _nll(session, dummy=dummy)
    sums = engine.forward_backward(
        batches, nll, supervised, every_parameter=dummy or lacking == 0, span=span
    )
    with span("optimizer"):
        norm = engine.clip_gradient(run.optim.clip_norm)

    # What each rank has done, not what it was meant to do: the rows counted are those that were in
    # the batches.
    rows = [index for batch in batches for index in batch.indices]
    padding = [-1] * (-(-run.data.global_batch_size // data.world) - len(rows))
    gathered = data.all_gather([sum(sums), sum(batch.tokens for batch in batches), *rows, *padding])
    loss = sum(report[0] for report in gathered) / supervised
    if not math.isfinite(loss):
        broken = [
            batch for batch, value in zip(batches, sums, strict=True) if not math.isfinite(value)
        ]
        raise _failure(session, "nonfinite-loss", f"the loss of step {step} is {loss}", broken)
    if not math.isfinite(norm):
        raise _failure(
            session,
            "nonfinite-gradient",
            f"the gradient's norm in step {step} is {norm}, its loss {loss:.4g}",
            batches,
        )

    lr = session.rate(step)
    with span("optimizer"):
        engine.optimizer_step(lr)
    trained = [int(row) for report in gathered for row in report[2:] if row >= 0]
    visits = progress.visits.numpy()
    np.add.at(visits, trained, 1)
    metrics = {
        "step": step,
        "epoch": session.plan.epoch(step),
        "loss": loss,
        "grad_norm": norm,
        "lr": lr,
        "tokens": int(sum(report[1] for report in gathered)),
        "supervised_tokens": supervised,
        "samples": len(trained),
        "distinct_samples": int(np.count_nonzero(visits)),
    }
    return metrics, agreed


def _nll(session: Session, *, dummy: bool) -> Callable[[Callable[..., Any], Batch], Tensor]:
    """The loss of a micro-batch.

    `dummy`: where it has no image, the vision tower runs all the same, for a gradient of 0.
    """

    def nll(model: Callable[..., Any], batch: Batch) -> Tensor:
        family, module = session.family, session.engine.module
        without, both = (
            dummy and not batch.images,
            {"pixel_values", "pixel_values_videos"} <= batch.inputs.keys(),
        )
        with (
            adding_dummy(family, module)
            if without
            else joint_vision_forward(family, module)
            if both
            else nullcontext()
        ):
            return summed_nll(model, batch)

    return nll


def _validate(session: Session, step: int, watchers: Watchers) -> None:
    scores = evaluate(
        session.engine,
        session.rows["validation"],
        session.ledgers["validation"].kept,
        session.run.evaluation,
    )
    watchers.findings.extend(
        one for one in scores.findings("validation") if one not in watchers.findings
    )
    if session.ranks.rank == 0:
        row = {
            "step": step,
            "validation_nll": scores.nll,
            "validation_exact_match": scores.exact_match,
            "validation_samples": scores.samples,
        }
        append(session.folder.metrics, row)
        watchers.trackers.log(row)
        watchers.display.say(
            f"step {step}: validation NLL {scores.nll:.4f}, exact match {scores.exact_match:.1%} of"
            f" {scores.samples}"
        )


def _save(session: Session, progress: Progress, writer: Writer) -> None:
    made = snapshot(session, progress)
    session.ranks.on_rank_zero(lambda: writer.save(made))


def _failure(session: Session, rule: str, message: str, batches: Sequence[Batch]) -> SharedFindings:
    """What stops a step, with the rows that were in it, from every rank."""
    rows = session.rows["train"].rows
    names = [rows.name(index) for batch in batches for index in batch.indices]
    everyone = [name for share in session.engine.data.all_gather_objects(names) for name in share]
    listed = ", ".join(everyone[:8]) + (
        f" and {len(everyone) - 8} more" if len(everyone) > 8 else ""
    )
    return SharedFindings(Diagnostic(rule, f"{message}; its rows: {listed}"))


def _rewind(folder: RunFolder, progress: Progress, start: Start) -> None:
    own = (
        start.checkpoint
        if start.began and start.began.path.resolve() == folder.path.resolve()
        else None
    )
    folder.set_aside_newer(own)
    folder.rewind_metrics(progress.step)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _announce(session: Session, progress: Progress, start: Start) -> None:
    plan, ranks, engine = session.plan, session.ranks, session.engine
    trained = f" ({engine.trained:,} trained)" if engine.trained < engine.size else ""
    print(
        f"{session.run.model.family}, {session.engine.size:,} parameters{trained} in"
        f" {session.run.model.dtype} on {ranks.device.type}, {session.run.engine.kind},"
        f" {ranks.world} rank{'s' * (ranks.world > 1)} of {torch.get_num_threads()} threads;"
        f" {session.total_steps} steps of {plan.global_batch_size} rows, {plan.steps_per_epoch}"
        " steps an epoch"
    )
    for warning in start.warnings:
        print(
            f"warning[{warning.rule} {warning.code}]: {warning.message}; it is passed over and set"
            " aside"
        )
    if start.checkpoint is not None:
        print(f"resuming after step {progress.step} from {start.checkpoint}")
    print(f"run folder: {session.folder.path}", flush=True)
