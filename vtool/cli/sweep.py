"""`vtool train sft -m RECIPE KEY=A,B…`: a run for each combination, one after the other."""

import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from vtool.config.load import Loaded, load_run
from vtool.config.overrides import quoted
from vtool.config.sweep import Job, expand_grid
from vtool.diagnostics import Diagnostic, Findings
from vtool.launchers import is_joined, joined_launch
from vtool.report.ranking import order, validation_of
from vtool.report.run_files import EvaluationLine, read_run
from vtool.training.stop import SIGNALS, SignalContext


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A job, and the folder of its run."""

    job: Job
    overrides: tuple[str, ...]
    """The job's settings, with the name of its run."""
    folder: Path


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job that has ended, or was not started."""

    planned: PlannedRun
    status: str
    """The way it ended, in words."""
    code: int | None
    """The exit status of its process; None where it was not started."""


def run_sweep(recipe: str, overrides: Sequence[str], options: Sequence[str] = ()) -> int:
    """Check all jobs, train them one after the other, and print a table.

    Returns:
        The worst exit status of a job.

    Raises:
        Findings: what is wrong with any of the jobs, before the first one starts.
    """
    if (launch := joined_launch()) and is_joined(launch):
        message = (
            f"-m starts one run after the other, and each process of {launch.command} would"
            f" ({launch.said})"
        )
        help = f"leave {launch.command} out: launch.nproc says how many processes each run has"
        raise Findings(Diagnostic("launch-conflict", message, help), fatal=True)
    planned = plan_jobs(recipe, expand_grid(overrides))
    done: list[EndedRun] = []
    with _SignalForwarding() as signals:
        for number, each in enumerate(planned, 1):
            if signals.received:
                done.append(EndedRun(each, "not started", None))
                continue
            swept = " ".join(each.job.swept) or recipe
            print(f"job {number} of {len(planned)}: {swept}", flush=True)
            done.append(_train(recipe, each, signals, options))
    print("\n".join(job_table(done)))
    if len(done) > 1:
        print(f"side by side: vtool report {_common_name(planned)}")
    return max(each.code or 0 for each in done)


def _common_name(planned: Sequence[PlannedRun]) -> str:
    """Return the name by which `vtool report` finds all runs, or their folders."""
    folders = [each.folder for each in planned]
    suffixes = [f"-{each.job.suffix}" for each in planned]
    stems = {
        folder.name.removesuffix(suffix) for folder, suffix in zip(folders, suffixes, strict=True)
    }
    if {folder.parent for folder in folders} == {Path("runs")} and len(stems) == 1:
        return shlex.quote(stems.pop())
    if len({folder.parent for folder in folders}) == 1:
        return shlex.quote(str(folders[0].parent))
    return shlex.join(map(str, folders))


def plan_jobs(recipe: str, jobs: Sequence[Job]) -> list[PlannedRun]:
    """Give each job a name and a folder of its own.

    Raises:
        Findings: of all jobs, each finding once; `run-folder-taken`.
    """
    found: dict[tuple[str, str], Diagnostic] = {}
    planned: list[PlannedRun] = []
    for job in jobs:
        try:
            loaded = load_run(recipe, job.overrides)
        except Findings as findings:
            if findings.fatal:
                raise
            found |= {(each.rule, each.message): each for each in findings.diagnostics}
        else:
            planned.append(_name_run(job, loaded))
    if found:
        raise Findings(found.values())
    taken: dict[Path, PlannedRun] = {}
    for each in planned:
        if (other := taken.setdefault(each.folder, each)) is not each:
            both = f"{' '.join(other.job.swept)}, and {' '.join(each.job.swept)}"
            message = f"two jobs would train in {each.folder}: {both}"
            help = "sweep run.name or run.dir with distinct values, or not at all"
            raise Findings(Diagnostic("run-folder-taken", message, help, "run.name"))
    return planned


def _name_run(job: Job, loaded: Loaded) -> PlannedRun:
    run = loaded.run
    swept = {override.partition("=")[0].lstrip("+") for override in job.swept}
    name, given = run.run.name, run.run.dir
    if not job.suffix or swept & {"run.name", "run.dir"}:
        return PlannedRun(job, job.overrides, run.folder)
    name = f"{name}-{job.suffix}"
    more = [f"run.name={quoted(name)}"]
    if given is not None:
        given = str(Path(given) / job.suffix)
        more.append(f"run.dir={quoted(given)}")
    return PlannedRun(job, (*job.overrides, *more), Path(given or f"runs/{name}"))


def _train(
    recipe: str, planned: PlannedRun, signals: "_SignalForwarding", options: Sequence[str]
) -> EndedRun:
    finished = (planned.folder / "result.json").exists()
    # A process of its own: nothing of one run is left for the next, and a crash ends one alone.
    command = [sys.executable, "-m", "vtool", "train", "sft", recipe, *planned.overrides, *options]
    code = signals.run(command)
    if code == 0:
        return EndedRun(planned, "already finished" if finished else "finished", 0)
    code = 128 - code if code < 0 else code
    stopped = code in {128 + number for number in SIGNALS}
    return EndedRun(planned, "stopped" if stopped else f"failed with {code}", code)


class _SignalForwarding(SignalContext):
    """Takes the signals that ask to stop, and forwards them to the job that runs.

    The job is no member of the terminal's process group, so that a Ctrl-C reaches it once. In that
    group it would get the terminal's too, and ours later: on a busy machine by more than a second,
    and a second request ends a run without a checkpoint (`training/stop.py`).
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._held: list[int] = []
        self._job: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        # what Ctrl-Z and Ctrl-\ do, they do to the job too: the terminal does not
        more = {signal.SIGQUIT: self.handle, signal.SIGTSTP: self._suspend}
        taken = [number for number in more if signal.getsignal(number) is not signal.SIG_IGN]
        earlier: dict[int, Any] = {number: signal.signal(number, more[number]) for number in taken}
        self._before = {**self._before, **earlier}
        return self

    def run(self, command: Sequence[str]) -> int:
        """Run a job to its end; return its exit status, or the negative number of a signal.

        It has no standard input: who is not in the terminal's group is stopped when it reads there.
        """
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        self._job = job
        for number in self._held:  # they came while it was started
            job.send_signal(number)
        try:
            # Looks again and again: a library's thread may be given a signal, and ends no waitpid.
            return job.wait(timeout=math.inf)
        finally:
            self._job = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self._job is not None:
            self._job.send_signal(number)
        else:
            self._held.append(number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Suspend the job and this process, until a shell lets it continue."""
        self._signal_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: int) -> None:
        if self._job is not None and self._job.poll() is None:
            os.killpg(self._job.pid, number)


def job_table(done: Sequence[EndedRun]) -> Iterator[str]:
    """Yield a line for each job: its run, its settings, how it ended, its validation scores.

    The best comes first. The test rows choose none: the best of many by them is fitted to them.
    """
    heads = ("run", "settings", "status", "exact match", "NLL")
    scores = [_scores(each.planned.folder, each.code) for each in done]
    any_scored = any(each is not None and each.nll is not None for each in scores)
    rows = [
        (
            str(done[place].planned.folder),
            " ".join(done[place].planned.job.swept),
            done[place].status,
            *_in_words(scores[place]),
        )
        for place in order(scores)
    ]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    yield ""
    for row in (heads, *rows):
        words = [
            text.rjust(wide) if column > 2 else text.ljust(wide)
            for column, (text, wide) in enumerate(zip(row, widths, strict=True))
        ]
        best = any_scored and len(rows) > 1 and row is rows[0]
        yield ("  ".join(words).rstrip()) + ("  best" if best else "")
    yield ""
    yield (
        "scores are of the validation rows; those of the test rows are in each run's report"
        if any_scored
        else "no validation rows were scored, and the test rows choose none: give data.validation"
    )


def _scores(folder: Path, code: int | None) -> EvaluationLine | None:
    """Return the validation scores of a run that has finished."""
    if code != 0:
        return None
    try:
        return validation_of(read_run(folder))
    except Findings:
        return None


def _in_words(scores: EvaluationLine | None) -> tuple[str, str]:
    match, nll = (scores.exact_match, scores.nll) if scores is not None else (None, None)
    return (f"{match:.2%}" if match is not None else "-", f"{nll:.4f}" if nll is not None else "-")
