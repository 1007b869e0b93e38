"""Supervised fine-tuning: a run, from its start to its end.

`vtool.training.loop` is its training loop, `vtool.training.step` one step of that.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vtool.contents import read_small_json
from vtool.data.worker_failures import with_named_failures
from vtool.diagnostics import RULES, Diagnostic
from vtool.diagnostics.printable import printable
from vtool.diagnostics.progress import working
from vtool.engines.ranks import Ranks
from vtool.models.mapped_weights import pickled_files, weight_files
from vtool.profiling.profiler import open_profiler
from vtool.training.checkpoint import best_before
from vtool.training.checkpoint_writer import CheckpointWriter
from vtool.training.digests import on_rank_zero_by_all
from vtool.training.display import Display
from vtool.training.finish import finish
from vtool.training.loop import LoopTools, train_loop
from vtool.training.metrics import read_metric_lines, step_of_line, what_is_lost
from vtool.training.observe_run import check_arrival
from vtool.training.run_folder import RunFolder
from vtool.training.session import Progress, RunRequest, Session
from vtool.training.setup import set_up_run
from vtool.training.start import Start, find_start
from vtool.training.stop import StopRequest
from vtool.training.tracking import open_trackers
from vtool.words import plural


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of a run: its status, its last step and its findings."""

    folder: Path
    status: str
    """`finished`, `stopped`, or `already finished`."""
    step: int
    total_steps: int
    signal: int | None = None
    findings: tuple[Diagnostic, ...] = ()
    """The findings of the profiler, trackers and evaluations, none of which ended the run."""


def train(request: RunRequest, ranks: Ranks) -> RunOutcome:
    """Train a run, from its first step or from a checkpoint.

    Every rank calls this; rank 0 writes and prints.

    Raises:
        Findings: whatever stands in the way. `SharedFindings` are raised by every rank alike.
    """
    folder = RunFolder(request.run.folder)
    ranks.on_rank_zero(folder.lock)
    try:
        return _train(request, folder, ranks)
    finally:
        folder.unlock()


def _train(request: RunRequest, folder: RunFolder, ranks: Ranks) -> RunOutcome:
    run, settings = request.run, request.run.checkpoint
    with working("looking at the run's folder"):
        start = on_rank_zero_by_all(ranks, partial(find_start, folder, run, request.effective))
    if start.finished:
        result = read_small_json(folder.result)
        steps, found = result["steps"], _failed_at_its_end(folder, result)
        return RunOutcome(folder.path, "already finished", steps, steps, findings=found)
    session, progress = set_up_run(request, folder, start, ranks)
    check_arrival(session, request.origins)
    lost = ranks.on_rank_zero(lambda: _rewind(session, progress, start))
    if ranks.rank == 0:
        _announce(session, progress, start, lost)
    first, last, train_rows = progress.step, session.total_steps, session.rows["train"]
    with (
        StopRequest() as stop,
        CheckpointWriter(
            folder.checkpoints,
            settings.keep_last,
            asynchronous=settings.asynchronous,
            synced=folder.metrics,
            ranks=ranks,
        ) as writer,
        Display(first, last, silent=ranks.rank > 0) as display,
        open_profiler(run, ranks, folder.path, first, last, display.say) as profiler,
        open_trackers(request, folder.path, first, ranks) as trackers,
    ):
        tools = LoopTools(writer, stop, display, trackers, profiler)
        signal = with_named_failures(
            partial(train_loop, session, progress, tools),
            lambda: train_rows.in_work,
            train_rows.rows.name,
        )
        ranks.on_rank_zero(writer.wait)
    findings = [*profiler.verify(), *trackers.findings, *tools.findings]
    findings += ranks.on_rank_zero(lambda: _changed_sources(session))
    if signal is None:
        findings += finish(session, progress, profiler.checks, [*findings, *lost])
    status = "stopped" if signal else "finished"
    return RunOutcome(folder.path, status, progress.step, last, signal, tuple(findings))


def _changed_sources(session: Session) -> list[Diagnostic]:
    """Return the finding of each split whose files have changed since the run began."""
    return [each for split, rows in session.rows.items() for each in rows.rows.changes(split)]


def _failed_at_its_end(folder: RunFolder, result: Mapping[str, Any]) -> tuple[Diagnostic, ...]:
    """Return a finding for each error that a run has finished with: it is still there."""
    checks = result.get("checks")
    return tuple(
        Diagnostic(rule, f"{folder.result}: this check had failed when the run finished")
        for rule, state in (checks.items() if isinstance(checks, dict) else ())
        if state == "failed" and rule in RULES and RULES[rule].severity == "error"
    )


def _rewind(session: Session, progress: Progress, start: Start) -> list[Diagnostic]:
    """Set aside what the folder has of later steps than the one that the run resumes from.

    Returns:
        The finding for lines of earlier steps that are damaged or missing.
    """
    folder, every = session.folder, session.run.evaluation.every_steps
    own = start.origin is not None and start.origin.path.resolve() == folder.path.resolve()
    folder.set_aside_newer(start.checkpoint if own else None)
    lost = None
    if own:
        with folder.writing():
            lines = read_metric_lines(folder.metrics)
        # one that began from another run's checkpoint has no lines before that
        first = 1 if start.from_nothing else min(map(step_of_line, lines), default=math.inf)
        steps = range(int(min(first, progress.step + 1)), progress.step + 1)
        due = (
            [step for step in steps if step % every == 0 or step == session.total_steps]
            if every is not None and "validation" in session.rows
            else []
        )
        lost = what_is_lost(lines, steps, due)
    folder.rewind(progress.step)
    if start.checkpoint is not None and not own:
        _copy_best(folder, start.checkpoint, progress)
    if lost is None:
        return []
    message = f"{folder.metrics}: {lost}"
    return [Diagnostic("metrics-damaged", message, parameter="run.dir")]


def _copy_best(folder: RunFolder, checkpoint: Path, progress: Progress) -> None:
    """Copy the best checkpoint so far of another run, from which this one resumes."""
    best, _ = best_before(checkpoint) if progress.marks.best is not None else (None, [])
    if best is not None:
        own = folder.checkpoints / best.name
        temporary = own.with_name(f".writing-{own.name}")
        with folder.writing():
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(best, temporary)
            temporary.rename(own)


def _announce(
    session: Session, progress: Progress, start: Start, lost: Sequence[Diagnostic]
) -> None:
    plan, ranks, engine = session.plan, session.ranks, session.engine
    trained = f" ({engine.trained:,} trained)" if engine.trained < engine.size else ""
    print(
        f"{session.run.model.family}, {session.engine.size:,} parameters{trained}, computed in"
        f" {session.run.model.dtype} on {ranks.device.type}, {session.run.engine.kind},"
        f" {plural(ranks.world, 'rank')} of {plural(torch.get_num_threads(), 'thread')};"
        f" {plural(session.total_steps, 'step')} of {plural(plan.global_batch_size, 'row')},"
        f" {plural(plan.steps_per_epoch, 'step')} an epoch"
    )
    experts = [one for name, one in engine.named_parameters() if ".experts." in name]
    if session.run.lora is not None and experts and not any(one.requires_grad for one in experts):
        share = sum(one.numel() for one in experts) / engine.size
        print(f"adapters reach no expert: {share:.0%} of the weights stay as they are")
    folder = session.run.model.path
    if folder is not None and not weight_files(Path(folder)) and pickled_files(Path(folder)):
        print(printable(f"{folder} has pickles (.bin): their tensors are read, and no code is run"))
    for warning in start.warnings:
        print(printable(f"warning[{warning.rule} {warning.code}]: {warning.message}"))
    for one in lost:
        print(f"{one.severity}[{one.rule} {one.code}]: {one.message}\n  help: {one.remedy}")
    if start.weights is not None:
        print(printable(start.weights.in_words()))
    if start.checkpoint is not None:
        print(printable(f"resuming after step {progress.step} from {start.checkpoint}"))
    print(printable(f"run folder: {session.folder.path}"), flush=True)
