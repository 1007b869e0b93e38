"""The profiler that the training loop calls.

It starts the tool, times the steps, stops the tool, and checks that the promised files are there.
An error of the profiler is a finding: it does not end the training, and the run reports it at its
end and exits with 1.
"""

import itertools
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
from vtool.contents import read_small_json
from vtool.devices.profiling import forget_peak_memory, peak_memory, ranges
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.engines.spans import Span, null_span
from vtool.profiling.files import locked, remove_unfinished, replace_file
from vtool.profiling.peak import matmul_peak
from vtool.profiling.start import interval_behind, profile_problems, recorded_before, unwritable
from vtool.profiling.step_timer import StepTimer
from vtool.profiling.summary import StepTime, merge_interval, rank_summary, summary_line
from vtool.profiling.tools import Recording, Tool, make_tool

T = TypeVar("T")
UNRECORDED_STEPS = 100
"""Steps before the interval that throughput is measured over."""
PROFILE_FOLDER = "profile"
SUMMARY = "summary.json"


def open_profiler(
    run: Run, ranks: Ranks, folder: Path, step: int, total: int, say: Callable[[str], None]
) -> "RankProfiler":
    """Open the profiler of a run that resumes after `step`, of `total` steps, on every rank.

    Raises:
        SharedFindings: `profile-interval`, `profile-behind`, `profiler-ranks`, `profiler-device`,
            `run-folder-unwritable`.
    """
    settings, folder = run.profiler, folder / PROFILE_FOLDER
    if settings.tool == "none":
        return RankProfiler(run, ranks, folder, step, say, records=False)
    first, last = settings.profile_interval
    wanted = settings.ranks is None or ranks.rank in settings.ranks
    own = [*profile_problems(settings, ranks, total), *(unwritable(folder) if wanted else ())]
    if wanted and not own:
        remove_unfinished(folder, ranks.rank)
    who = "all ranks" if settings.ranks is None else f"ranks {', '.join(map(str, settings.ranks))}"
    note = f"profiler: {settings.tool} records steps {first} to {last} of {who}"
    records = wanted
    if first <= step:
        if before := recorded_before(folder, ranks.rank, first) if wanted else [last]:
            records = False
            note = f"the profile of steps {first} to {before[-1]} is there already, in {folder}"
        else:
            own.append(interval_behind(settings, step))
    found = _of_all_ranks(ranks, own)
    if any(finding.severity == "error" for finding in found):
        raise SharedFindings(found)
    if ranks.rank == 0:
        for finding in found:
            say(
                f"{finding.severity}[{finding.rule} {finding.code}]: {finding.message}\n  help:"
                f" {finding.remedy}"
            )
        say(note)
    return RankProfiler(run, ranks, folder, step, say, records=records, over=first <= step)


class RankProfiler:
    """One rank's profiler, entered for as long as the loop runs.

    `findings` are this rank's, in the order in which they came.
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
        """Bytes of each file that was found whole."""
        self.tool: Tool | None = None
        self._say = say
        self._records = records
        self._off = run.profiler.tool == "none" or over
        """True when nothing is left to do."""
        self._first, self._last = self.settings.profile_interval
        self._starts = max(self.settings.starts, step + 1)
        self._resumed = step
        self._unrecorded: deque[StepTime] = deque(maxlen=UNRECORDED_STEPS)
        self._recorded: list[StepTime] = []
        self._step, self._began = step, 0.0
        self._timer: StepTimer | None = None

    def __enter__(self) -> "RankProfiler":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what was recorded, where a stop or an error ends the loop inside the interval."""
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
            for one in self.findings:  # in addition to what is being raised
                print(f"{one.severity}[{one.rule} {one.code}]: {one.message}", file=sys.stderr)
        elif kind is None and self._step >= self._starts:  # the same on every rank
            self._finish(alone=False, cut=True)

    def begin(self, step: int) -> Span:
        """Prepare a step; return the function that names its spans."""
        if self._off:
            return null_span
        self._step, self._timer = step, None
        if self._records:
            if step == self._starts:
                self._guard("starting", self._start)
            if step >= self._first and self.tool is not None:
                self._timer = self._guard("timing the step", self._make_timer)
        self._began = perf_counter()
        return self._timer.span if self._timer else null_span

    def end(self, metrics: Mapping[str, Any]) -> None:
        """Take in a finished step, and its line of metrics.jsonl.

        After the interval's last step, all ranks write together.
        """
        if self._off:
            return
        spent = dict(self._timer.spent) if self._timer else {}
        seconds = sum(spent.values()) or perf_counter() - self._began
        time = StepTime(self._step, seconds, metrics["tokens"], metrics["samples"], spent)
        if self._step >= self._first:
            self._recorded.append(time)
        # the first step of a process is slower than those after it
        elif self._resumed + 1 < self._step < self._starts:
            self._unrecorded.append(time)
        if (tool := self.tool) is not None:
            self._guard("going on to the next step", lambda: tool.step(self._step))
        if self._step == self._last:
            self._finish(alone=False, cut=False)

    def verify(self) -> list[Diagnostic]:
        """Check at the run's end that each promised file is still there, and as large as it was.

        Returns:
            The findings of all ranks, on every rank.
        """
        for path, size in self.promised.items():
            now = _size(path) if path.exists() else -1
            if now != size:
                state = "not there" if now < 0 else f"now {now} bytes long"
                self._report_missing(path, f"it was whole when the interval ended, and is {state}")
        return _of_all_ranks(self.ranks, self.findings)

    @property
    def checks(self) -> tuple[str, ...]:
        """The rules that a run with this profiler is held to."""
        return () if self.settings.tool == "none" else ("profile-missing", "profiler-failed")

    def _start(self) -> None:
        self.tool = make_tool(self.settings, self.ranks.device, self.folder, self.ranks.rank)
        forget_peak_memory(self.ranks.device)
        self.tool.start(self._step)

    def _make_timer(self) -> StepTimer:
        named = ranges(self.ranks.device)
        if named is not None:
            # a library without ranges says so here, and not within the training
            with named("vtool"):
                pass
        return StepTimer(self.ranks.device, named)

    def _finish(self, *, alone: bool, cut: bool) -> None:
        """Stop the tool, write its files and check them.

        Args:
            alone: the other ranks may not take part.
            cut: the run did not reach the interval's end.
        """
        own = None
        if self.tool is not None:
            own = self._guard("writing", self._write)
            if cut:
                self._report_cut()
        self.tool, self._off = None, True
        by_rank = (
            {self.ranks.rank: own} if alone else dict(enumerate(self.ranks.all_gather_objects(own)))
        )
        made = {str(rank): summary for rank, summary in by_rank.items() if summary is not None}
        if (self.ranks.rank == 0 or alone) and made and self._recorded:
            self._guard("writing its summary", lambda: self._write_summary(made, alone=alone))

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
                self._report_missing(path, problem)
            else:
                self.promised[path] = _size(path)
        if made.left_out:
            self.findings.append(
                Diagnostic(
                    "trace-capped",
                    (
                        f"{made.files[0]}: {made.left_out} operations, the shortest ones, were left"
                        f" out to keep it below profiler.max_trace_mb={self.settings.max_trace_mb}"
                    ),
                    parameter="profiler.max_trace_mb",
                )
            )
        return self._rank_summary(made, memory) if self._recorded else None

    def _problem(self, tool: Tool, path: Path, steps: Sequence[int]) -> str | None:
        if not path.exists():
            return "it is not there"
        return "it is empty" if not _size(path) else tool.problem(path, steps)

    def _rank_summary(self, made: Recording, memory: tuple[int, str]) -> dict[str, Any]:
        peak: tuple[float | None, str] = (None, "no FLOPs were counted to compare it with")
        if made.flops:
            try:
                peak = (matmul_peak(self.ranks.device, getattr(torch, self.run.model.dtype)), "")
            except RuntimeError as error:
                first = str(error).splitlines()[0]
                peak = (None, f"the device's peak could not be measured: {first}")
        recomputes = self.run.model.gradient_checkpointing != "none"
        return rank_summary(
            self._recorded, list(self._unrecorded), made, peak, memory, recomputes=recomputes
        ) | {"files": [path.name for path in made.files]}

    def _write_summary(self, ranks: Mapping[str, Mapping[str, Any]], *, alone: bool) -> None:
        steps = [one.step for one in self._recorded]
        device, name = self.ranks.device, "CPU"
        if device.type != "cpu":
            name = str(torch.get_device_module(device).get_device_name(device))
        interval: dict[str, Any] = {
            "tool": self.settings.tool,
            "steps": [steps[0], steps[-1]],
            "asked": list(self.settings.profile_interval),
            "world": self.ranks.world,
            "device": name,
            "dtype": self.run.model.dtype,
            "threads": torch.get_num_threads(),
            "record": self.settings.record.model_dump(),
            "ranks": ranks,
        }
        path = self.folder / SUMMARY
        with locked(self.folder):  # where each rank is alone, each adds itself
            before = None
            with suppress(OSError, ValueError):
                before = read_small_json(path)
            summary = merge_interval(before, interval, alone=alone)
            replace_file(path, json.dumps(summary, indent=1) + "\n")
            self.promised[path] = _size(path)
        self._say(f"{summary_line(steps, ranks)}: {self.folder}")

    def _report_cut(self) -> None:
        steps = [one.step for one in self._recorded]
        there = f"steps {steps[0]} to {steps[-1]} are written" if steps else "nothing was recorded"
        interval = list(self.settings.profile_interval)
        self.findings.append(
            Diagnostic(
                "profile-cut-short",
                f"the run ended before profiler.profile_interval {interval} had: {there}",
                parameter="profiler.profile_interval",
            )
        )

    def _report_missing(self, path: Path, problem: str) -> None:
        self.findings.append(
            Diagnostic(
                "profile-missing",
                f"{path}: {problem} ({_free_space(self.folder)})",
                parameter="profiler.tool",
            )
        )

    def _guard(self, what: str, work: Callable[[], T]) -> T | None:
        """Run `work`; turn an exception into a finding, and record nothing more."""
        try:
            return work()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            message = (
                f"rank {self.ranks.rank}, step {self._step}, {what}: {type(error).__name__}:"
                f" {first}"
            )
            rule = "profile-missing" if isinstance(error, OSError) else "profiler-failed"
            if rule == "profile-missing":
                message += f" ({_free_space(self.folder)})"
            self.findings.append(Diagnostic(rule, message, parameter="profiler.tool"))
            tool, self.tool, self._records = self.tool, None, False
            if tool is not None:
                with suppress(Exception):
                    tool.stop()
            return None


def _of_all_ranks(ranks: Ranks, own: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the findings of all ranks, each once."""
    return list(dict.fromkeys(itertools.chain(*ranks.all_gather_objects(list(own)))))


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return (
        sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


def _free_space(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there"
    except OSError:
        return "the folder is gone"
