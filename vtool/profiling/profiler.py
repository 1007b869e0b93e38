"""What the loop calls: it starts the tool, marks the steps, stops the tool, and sees that what was
promised is there.

An error of the profiler is a finding. It ends neither the training nor unheard: the run tells it
when it has ended, and exits with 1.
"""

import json
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from vtool.config.schema import Run
from vtool.devices.profiling import forget_peak_memory, peak_memory, ranges
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.engines.spans import Span, null_span
from vtool.profiling.files import locked, replace_file, sweep
from vtool.profiling.marks import Marks
from vtool.profiling.peak import matmul_peak
from vtool.profiling.start import behind, problems, recorded_before, unwritable
from vtool.profiling.summary import StepTime, in_words, merged, rank_summary
from vtool.profiling.tools import Recorded, Tool, make_tool

T = TypeVar("T")
PLAIN = 100
"""Steps before the interval that speeds are measured over."""
FOLDER = "profile"
SUMMARY = "summary.json"


def open_profiler(
    run: Run, ranks: Ranks, folder: Path, step: int, total: int, say: Callable[[str], None]
) -> "Profiler":
    """The profiler of a run that goes on after `step`, of `total`. Every rank asks; rank 0 says.

    Raises:
        SharedFindings: `profile-interval`, `profile-behind`, `profiler-ranks`, `profiler-device`,
            `run-folder-unwritable`.
    """
    given, folder = run.profiler, folder / FOLDER
    if given.tool == "none":
        return Profiler(run, ranks, folder, step, say, records=False)
    first, last = given.profile_interval
    wanted = given.ranks is None or ranks.rank in given.ranks
    mine = [*problems(given, ranks, total), *(unwritable(folder) if wanted else ())]
    if wanted and not mine:
        sweep(folder, ranks.rank)
    records, notes = wanted, []
    if first <= step:
        if before := recorded_before(folder, ranks.rank, first) if wanted else [last]:
            records = False
            notes = [f"the profile of steps {first} to {before[-1]} is there already, in {folder}"]
        else:
            mine.append(behind(given, step))
    shared = [finding for share in ranks.all_gather_objects(mine) for finding in share]
    found = list(dict.fromkeys(shared))
    if any(finding.severity == "error" for finding in found):
        raise SharedFindings(found)
    if ranks.rank == 0:
        for finding in found:
            say(
                f"{finding.severity}[{finding.rule} {finding.code}]: {finding.message}\n  help:"
                f" {finding.remedy}"
            )
        of = "all ranks" if given.ranks is None else f"ranks {', '.join(map(str, given.ranks))}"
        for note in notes or [f"profiler: {given.tool} records steps {first} to {last} of {of}"]:
            say(note)
    return Profiler(run, ranks, folder, step, say, records=records, over=first <= step)


class Profiler:
    """One rank's profiler;

    entered for as long as the loop runs. `findings` are this rank's, as they come.
    """

    def __init__(
        self,
        run: Run,
        ranks: Ranks,
        folder: Path,
        step: int,
        say: Callable[[str], None],
        *,
        records: bool,
        over: bool = False,
    ) -> None:
        self.run, self.ranks, self.folder = run, ranks, folder
        self.settings = run.profiler
        self.findings: list[Diagnostic] = []
        self.promised: dict[Path, int] = {}
        """Files that were found whole, and their bytes."""
        self.tool: Tool | None = None
        self._say = say
        self._records = records
        self._off = run.profiler.tool == "none" or over
        """Nothing is left to do."""
        self._first, self._last = self.settings.profile_interval
        self._starts = max(self.settings.starts, step + 1)
        self._resumed = step
        self._plain: deque[StepTime] = deque(maxlen=PLAIN)
        self._recorded: list[StepTime] = []
        self._step, self._began = step, 0.0
        self._marks: Marks | None = None

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Where the run leaves the loop inside the interval, by a stop or by an error, what was
        recorded is written.
        """
        if self._off:
            return
        memory = (
            self.settings.tool == "memory"
            and kind is not None
            and issubclass(kind, torch.OutOfMemoryError)
        )
        # not in the interval: what is allocated is known, its history is not
        if memory and self._records and self.tool is None:
            self.tool = make_tool(self.settings, self.ranks.device, self.folder, self.ranks.rank)
        if kind is not None and self.tool is not None:
            self._finish(alone=True, cut=True)
            for one in self.findings:  # beside what is being raised
                print(f"{one.severity}[{one.rule} {one.code}]: {one.message}", file=sys.stderr)
        elif kind is None and self._step >= self._starts:  # the same on every rank
            self._finish(alone=False, cut=True)

    def begin(self, step: int) -> Span:
        """Before a step. Gives what marks its parts."""
        if self._off:
            return null_span
        self._step, self._marks = step, None
        if self._records:
            if step == self._starts:
                self._guard("starting", self._start)
            if step >= self._first and self.tool is not None:
                self._marks = self._guard("marking", self._make_marks)
        self._began = perf_counter()
        return self._marks.span if self._marks else null_span

    def end(self, metrics: Mapping[str, Any]) -> None:
        """After a step, with what metrics.jsonl has of it.

        After the interval's last step, all ranks come here together.
        """
        if self._off:
            return
        spent = dict(self._marks.spent) if self._marks else {}
        seconds = sum(spent.values()) or perf_counter() - self._began
        time = StepTime(self._step, seconds, metrics["tokens"], metrics["samples"], spent)
        if self._step >= self._first:
            self._recorded.append(time)
        # the first step of a process is slower than those after it
        elif self._resumed + 1 < self._step < self._starts:
            self._plain.append(time)
        if (tool := self.tool) is not None:
            self._guard("going on to the next step", lambda: tool.step(self._step))
        if self._step == self._last:
            self._finish(alone=False, cut=False)

    def verify(self) -> list[Diagnostic]:
        """At the run's end:

        each promised file is still there, and as large as it was. All ranks' findings, on every
        rank.
        """
        for path, size in self.promised.items():
            now = _size(path) if path.exists() else -1
            if now != size:
                self._missing(
                    path,
                    "it was whole when the interval ended, and is "
                    + ("not there" if now < 0 else f"now {now} bytes long"),
                )
        return list(
            dict.fromkeys(
                finding
                for share in self.ranks.all_gather_objects(self.findings)
                for finding in share
            )
        )

    @property
    def checks(self) -> tuple[str, ...]:
        """The rules that a run with this profiler is held to."""
        return () if self.settings.tool == "none" else ("profile-missing", "profiler-failed")

    def _start(self) -> None:
        self.tool = make_tool(self.settings, self.ranks.device, self.folder, self.ranks.rank)
        forget_peak_memory(self.ranks.device)
        self.tool.start(self._step)

    def _make_marks(self) -> Marks:
        named = ranges(self.ranks.device)
        if named is not None:
            # a library without ranges says so here, and not within the training
            with named("vtool"):
                pass
        return Marks(self.ranks.device, named)

    def _finish(self, *, alone: bool, cut: bool) -> None:
        """Stop, write and check.

        `alone`: the other ranks may not come here. `cut`: the run has not come to the interval's
        end.
        """
        mine = None
        if self.tool is not None:
            mine = self._guard("writing", self._write)
            if cut:
                self._say_cut()
        self.tool, self._off = None, True
        everyone = (
            {self.ranks.rank: mine}
            if alone
            else dict(enumerate(self.ranks.all_gather_objects(mine)))
        )
        made = {str(rank): summary for rank, summary in everyone.items() if summary is not None}
        if (self.ranks.rank == 0 or alone) and made and self._recorded:
            self._guard("writing its summary", lambda: self._summarise(made, alone=alone))

    def _write(self) -> dict[str, Any] | None:
        tool = self.tool
        assert tool is not None
        tool.stop()
        memory = peak_memory(self.ranks.device)
        steps = [one.step for one in self._recorded] or [self._step]
        if not self._recorded and self.settings.tool != "memory":
            return None  # it ended in the warm-up, of which nothing is kept
        stem = self.folder / f"rank-{self.ranks.rank}-steps-{steps[0]}-{steps[-1]}"
        made = tool.write(stem, steps)
        for path in made.files:
            if problem := made.broken.get(path) or self._problem(tool, path, steps):
                self._missing(path, problem)
            else:
                self.promised[path] = _size(path)
        if made.left_out:
            message = (
                f"{made.files[0]}: {made.left_out} operations, the shortest ones, were left out to"
                " keep it below "
            )
            message += f"profiler.max_trace_mb={self.settings.max_trace_mb}"
            self.findings.append(
                Diagnostic("trace-capped", message, parameter="profiler.max_trace_mb")
            )
        return self._rank_summary(made, memory) if self._recorded else None

    def _problem(self, tool: Tool, path: Path, steps: Sequence[int]) -> str | None:
        if not path.exists():
            return "it is not there"
        return "it is empty" if not _size(path) else tool.problem(path, steps)

    def _rank_summary(self, made: Recorded, memory: tuple[int, str]) -> dict[str, Any]:
        peak: tuple[float | None, str] = (None, "nothing was counted that it could be held against")
        if made.flops:
            try:
                peak = (matmul_peak(self.ranks.device, getattr(torch, self.run.model.dtype)), "")
            except RuntimeError as error:
                peak = (
                    None,
                    f"the device's peak could not be measured: {str(error).splitlines()[0]}",
                )
        recomputes = self.run.model.gradient_checkpointing
        summary = rank_summary(
            self._recorded, list(self._plain), made, peak, memory, recomputes=recomputes
        )
        return summary | {"files": [path.name for path in made.files]}

    def _summarise(self, ranks: Mapping[str, Mapping[str, Any]], *, alone: bool) -> None:
        steps = [one.step for one in self._recorded]
        device = self.ranks.device
        name = (
            "CPU"
            if device.type == "cpu"
            else str(torch.get_device_module(device).get_device_name(device))
        )
        asked, dtype = list(self.settings.profile_interval), self.run.model.dtype
        head: dict[str, Any] = {
            "tool": self.settings.tool,
            "steps": [steps[0], steps[-1]],
            "asked": asked,
            "world": self.ranks.world,
        }
        head |= {
            "device": name,
            "dtype": dtype,
            "threads": torch.get_num_threads(),
            "record": self.settings.record.model_dump(),
        }
        path = self.folder / SUMMARY
        with locked(self.folder):  # where each rank is alone, each adds itself
            before = None
            with suppress(OSError, ValueError):
                before = json.loads(path.read_text())
            replace_file(
                path,
                json.dumps(merged(before, head | {"ranks": ranks}, alone=alone), indent=1) + "\n",
            )
            self.promised[path] = _size(path)
        self._say(f"{in_words(steps, ranks)}: {self.folder}")

    def _say_cut(self) -> None:
        steps = [one.step for one in self._recorded]
        there = f"steps {steps[0]} to {steps[-1]} are written" if steps else "nothing was recorded"
        asked = list(self.settings.profile_interval)
        message = f"the run ended before profiler.profile_interval {asked} had: {there}"
        self.findings.append(
            Diagnostic("profile-cut-short", message, parameter="profiler.profile_interval")
        )

    def _missing(self, path: Path, problem: str) -> None:
        message = f"{path}: {problem} ({_free(self.folder)})"
        self.findings.append(Diagnostic("profile-missing", message, parameter="profiler.tool"))

    def _guard(self, what: str, work: Callable[[], T]) -> T | None:
        """Do something of the profiler's own;

        where it raises, that is a finding, and there is no profiler any more.
        """
        try:
            return work()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            message = (
                f"rank {self.ranks.rank}, step {self._step}, {what}: {type(error).__name__}:"
                f" {first}"
            )
            rule = "profile-missing" if isinstance(error, OSError) else "profiler-failed"
            told = message if rule == "profiler-failed" else f"{message} ({_free(self.folder)})"
            self.findings.append(Diagnostic(rule, told, parameter="profiler.tool"))
            tool, self.tool, self._records = self.tool, None, False
            if tool is not None:
                with suppress(Exception):
                    tool.stop()
            return None


def _size(path: Path) -> int:
    """Bytes of a file, or of all that is in a folder."""
    return (
        sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there"
    except OSError:
        return "the folder is gone"
