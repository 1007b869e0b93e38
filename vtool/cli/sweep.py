"""`vtool train sft -m RECIPE KEY=A,B…`:

every combination as a run of its own, one after the other.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from vtool.config.load import Loaded, load_run
from vtool.config.sweep import Job, expand
from vtool.diagnostics import Diagnostic, Findings

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Planned:
    """A job, and where its run lives."""

    job: Job
    overrides: tuple[str, ...]
    """With the run's own name."""
    folder: Path


@dataclass(frozen=True, slots=True)
class Done:
    """How a job ended:

    its status in words, and the exit status of its process; None where it was not started.
    """

    planned: Planned
    status: str
    code: int | None


def run_sweep(recipe: str, overrides: Sequence[str], options: Sequence[str] = ()) -> int:
    """Check all jobs, train them one after the other, and print a table.

    Returns:
        The worst exit status of a job.

    Raises:
        Findings: all that stands against any of the jobs, before the first one starts.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        message = (
            "-m starts a run after the other by itself, and each rank of the outer torchrun would"
            " do so"
        )
        raise Findings(
            Diagnostic(
                "launch-conflict",
                message,
                "leave torchrun out: launch.nproc says how many processes each run has",
            )
        )
    planned = plan(recipe, expand(overrides))
    done: list[Done] = []
    with _Passing() as passing:
        for number, each in enumerate(planned, 1):
            if passing.asked:
                done.append(Done(each, "not started", None))
                continue
            print(
                f"job {number} of {len(planned)}: {' '.join(each.job.swept) or recipe}", flush=True
            )
            done.append(_train(recipe, each, passing, options))
    for line in table(done):
        print(line)
    return max(each.code or 0 for each in done)


def plan(recipe: str, jobs: Sequence[Job]) -> list[Planned]:
    """Give each job a name and a folder of its own.

    Raises:
        Findings: of all jobs, each finding once.
    """
    found: dict[tuple[str, str], Diagnostic] = {}
    planned: list[Planned] = []
    for job in jobs:
        try:
            loaded = load_run(recipe, job.overrides)
        except Findings as findings:
            if findings.fatal:
                raise
            found |= {(each.rule, each.message): each for each in findings.diagnostics}
        else:
            planned.append(_named(job, loaded))
    if found:
        raise Findings(found.values())
    taken: dict[Path, Planned] = {}
    for each in planned:
        if (other := taken.setdefault(each.folder, each)) is not each:
            message = (
                f"two jobs would train in {each.folder}: {' '.join(other.job.swept)}, and"
                f" {' '.join(each.job.swept)}"
            )
            raise Findings(
                Diagnostic(
                    "run-folder-taken",
                    message,
                    "sweep run.name or run.dir with distinct values, or not at all",
                    "run.name",
                )
            )
    return planned


def _named(job: Job, loaded: Loaded) -> Planned:
    run = loaded.run
    swept = {override.partition("=")[0].lstrip("+") for override in job.swept}
    name, given = run.run.name, run.run.dir
    if not job.suffix or swept & {"run.name", "run.dir"}:
        return Planned(job, job.overrides, run.folder)
    name = f"{name}-{job.suffix}"
    more = [_override("run.name", name)]
    if given is not None:
        given = str(Path(given) / job.suffix)
        more.append(_override("run.dir", given))
    return Planned(job, (*job.overrides, *more), Path(given or f"runs/{name}"))


def _override(key: str, text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{escaped}'"


def _train(recipe: str, planned: Planned, passing: "_Passing", options: Sequence[str]) -> Done:
    finished = (planned.folder / "result.json").exists()
    # A process of its own: nothing of one run is left for the next, and a crash ends one alone.
    process = subprocess.Popen(
        [sys.executable, "-m", "vtool", "train", "sft", recipe, *planned.overrides, *options]
    )
    with passing.to(process):
        code = process.wait()
    if code == 0:
        return Done(planned, "already finished" if finished else "finished", 0)
    code = 128 - code if code < 0 else code
    stopped = code in {128 + number for number in _SIGNALS}
    return Done(planned, "stopped" if stopped else f"failed with {code}", code)


class _Passing:
    """Takes the signals that ask to stop, and passes them to the job that runs.

    A terminal's Ctrl-C reaches the job by itself too; two signals within a second are one request
    (`training/stop.py`).
    """

    def __init__(self) -> None:
        self.asked = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Passing":
        self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def to(self, process: "subprocess.Popen[bytes]") -> Iterator[None]:
        self._process = process
        try:
            yield
        finally:
            self._process = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def table(done: Sequence[Done]) -> Iterator[str]:
    """A line for each job: its run, what is its own, how it ended, and how good it is."""
    heads = ("run", "settings", "status", "exact match", "NLL")
    rows = [
        (
            str(each.planned.folder),
            " ".join(each.planned.job.swept),
            each.status,
            *_figures(each.planned.folder, each.code),
        )
        for each in done
    ]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    yield ""
    for row in (heads, *rows):
        words = [
            text.rjust(wide) if column > 2 else text.ljust(wide)
            for column, (text, wide) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(words).rstrip()


def _figures(folder: Path, code: int | None) -> tuple[str, str]:
    """`test_exact_match` and `test_nll` of a run that has finished."""
    try:
        result = (
            json.loads((folder / "result.json").read_text(encoding="utf-8")) if code == 0 else {}
        )
    except (OSError, ValueError):
        result = {}
    match, nll = result.get("test_exact_match"), result.get("test_nll")
    return (f"{match:.2%}" if match is not None else "-", f"{nll:.4f}" if nll is not None else "-")
