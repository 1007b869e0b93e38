"""The training loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vtool.data.loader import load_steps
from vtool.devices import spare_cores
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.progress import working
from vtool.profiling.profiler import RankProfiler
from vtool.training.best import update_best
from vtool.training.checkpoint_writer import CheckpointWriter
from vtool.training.display import Display
from vtool.training.metrics import append
from vtool.training.remarks import one_answer
from vtool.training.samples import keep_asked_again
from vtool.training.session import Progress, Session, evaluate_split, snapshot
from vtool.training.step import train_step
from vtool.training.stop import StopRequest
from vtool.training.tracking import Trackers


@dataclass(frozen=True, slots=True)
class LoopTools:
    """The open resources that the loop writes to or asks."""

    writer: CheckpointWriter
    stop: StopRequest
    display: Display
    trackers: Trackers
    profiler: RankProfiler
    findings: list[Diagnostic] = field(default_factory=list)
    """Findings of evaluations, which do not end the run; each once."""


def train_loop(session: Session, progress: Progress, tools: LoopTools) -> int | None:
    """Take the steps that are left, with evaluations and checkpoints between them.

    Returns:
        None after the last step, or where no better score has come for long; else the signal by
        which any rank was asked to stop.
    """
    run = session.run
    steps = range(progress.step + 1, session.total_steps + 1)
    if progress.marks.stopped:
        return None
    loaded = load_steps(
        session.rows["train"],
        steps,
        session.micro_batches,
        run.data.workers or 0,
        device=session.ranks.device,
        spare_cores=spare_cores(run, session.ranks.local_world, session.ranks.device.type),
        say=tools.display.say,
    )
    for step in steps:
        span = tools.profiler.begin(step)
        with span("train_batch"):
            started = time.perf_counter()
            with span("data"):
                batches = next(loaded)
            waited = time.perf_counter() - started
            metrics, signal = train_step(session, progress, step, batches, tools.stop, span, waited)
            progress.step = step
            seconds = time.perf_counter() - started
            progress.seconds += seconds
            metrics |= {
                "seconds": progress.seconds,
                "data_share": min(1.0, metrics["data_seconds"] / seconds),
            }
            if session.ranks.rank == 0:
                append(session.folder.metrics, metrics)
                tools.trackers.log(metrics)
                tools.display.step(metrics, time.perf_counter() - started)

            last = step == session.total_steps
            if "validation" in session.rows and (last or _due(step, run.evaluation.every_steps)):
                with span("evaluation"):
                    _validate(session, progress, tools)
            early = progress.marks.stopped
            best = progress.marks.best is not None and progress.marks.best.step == step
            if last or signal or early or best or _due(step, run.checkpoint.every_steps):
                with span("checkpoint"):
                    _save_checkpoint(session, progress, tools.writer, tools.display.say)
        tools.profiler.end(metrics)
        if early:
            return None
        if signal and not last:
            return signal
    return None


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _validate(session: Session, progress: Progress, tools: LoopTools) -> None:
    """Evaluate the validation split, write its scores as a line of metrics, and mark the step."""
    step, before = progress.step, progress.marks
    with working("scoring the validation split", tools.display.say, "rows"):
        scores = evaluate_split(session, "validation")
    tools.findings.extend(
        finding for finding in scores.findings("validation") if finding not in tools.findings
    )
    if session.ranks.rank == 0:
        metrics = {"step": step, **scores.as_metrics("validation")}
        append(session.folder.metrics, metrics)
        keep_asked_again(session.folder, session.rows["validation"], step, scores.answers)
        tools.trackers.log(metrics)
        tools.display.say(
            f"step {step}: validation NLL {scores.nll:.4f}, exact match {scores.exact_match:.1%} of"
            f" {scores.samples}"
        )
        for name, own in scores.by_source.items():
            tools.display.say(
                f"  {name}: NLL {own.nll:.4f}, exact match {own.exact_match:.1%} of {own.samples}"
            )
    numbers = scores.as_metrics("validation")
    # decided once, so that all ranks stop after the same step
    progress.marks = now = session.ranks.on_rank_zero(
        lambda: update_best(before, session.run, step, numbers)
    )
    if step == session.total_steps or now.stopped:  # earlier, a healthy model has one answer, too
        tools.findings.extend(one_answer(scores, "validation"))
    if now.best is not None and now.best != before.best:
        tools.display.say(f"  the best so far, by {now.best.metric}: it is kept")
    if now.stopped:
        than = f" than that of {now.reference.in_words()}" if now.reference else ""
        count = f"{now.waited} evaluations in a row" if now.waited > 1 else "an evaluation"
        tools.display.say(f"stopping early after step {step}: {count} with no better score{than}")


def _save_checkpoint(
    session: Session, progress: Progress, writer: CheckpointWriter, say: Callable[[str], None]
) -> None:
    """Write the state, of which each rank takes its share."""
    with working("saving a checkpoint", say):
        writer.save(snapshot(session, progress))
