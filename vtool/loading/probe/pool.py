"""Runs each subject in a process of its own: a crash or a hang is that subject's own result."""

import ctypes
import gc
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import LoadFailed, NotRun, error_text
from .facts import CheckFacts, Finished, ProbeRequest, SubjectFacts, facts_line, parse_facts
from .memory import resident_bytes

if TYPE_CHECKING:  # both import torch, which the interpreter may lack
    from .audit import Checks
    from .host import Host
    from .subject import Subject

_TICK_SECONDS = 0.01
PR_SET_PDEATHSIG = 1
LEAST_SHARE = 0.05
"""The share of a core below which a process is not slow, but stands still."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds since a subject's start, and CPU seconds of its processes."""

    elapsed: float
    computed: float


def is_over(most: float, before: TimeSpent, now: TimeSpent) -> bool:
    """Return True if a subject whose time has passed computed as long, or stands still.

    On a machine that has other work, a subject is not blamed for waiting for a core.

    Args:
        most: its seconds.
        before: what it had spent when this was last asked, some seconds ago.
    """
    lately = (now.computed - before.computed) / (now.elapsed - before.elapsed)
    return now.elapsed > most and (now.computed > most or lately < LEAST_SHARE)


@dataclass
class Child:
    """The process of a subject."""

    name: str
    folder: Path
    started: float
    asked: TimeSpent = TimeSpent(0.0, 0.0)
    """The seconds when they were last read."""
    killed: str | None = None


class Pool:
    """Runs `jobs` subjects at a time, within limits of seconds and of resident bytes each.

    Args:
        say: is given each subject's event.
    """

    def __init__(
        self, host: "Host", request: ProbeRequest, scratch: Path, say: Callable[[Finished], None]
    ) -> None:
        self.host, self.request, self.scratch, self.say = host, request, scratch, say
        self.children: dict[int, Child] = {}

    def run(self, subjects: Sequence[str]) -> None:
        """Start all subjects, and say the result of each when it ends."""
        waiting = list(enumerate(subjects))
        try:
            while waiting or self.children:
                while waiting and len(self.children) < self.request.jobs:
                    self._start(*waiting.pop(0))
                self._poll()
                time.sleep(_TICK_SECONDS)
        finally:
            for process in self.children:
                os.killpg(process, signal.SIGKILL)

    def _start(self, number: int, name: str) -> None:
        folder = self.scratch / str(number)
        folder.mkdir()
        process = os.fork()
        if process == 0:
            _run_child(self.host, self.request, name, folder)
        self.children[process] = Child(name, folder, time.monotonic())

    def _poll(self) -> None:
        """Finish the children that have ended, and kill those beyond a limit."""
        for process, child in list(self.children.items()):
            done, status, usage = os.wait4(process, os.WNOHANG)
            if done:
                del self.children[process]
                self._finish(process, child, status, usage.ru_maxrss * 1024)
                continue
            resident = resident_bytes(process)
            if self._is_over(process, child):
                child.killed = f"it took longer than {self._seconds(child):g} seconds"
            elif resident > (most := self._memory(child)):
                child.killed = f"it took more than {most / 2**20:.0f} MiB"
            if child.killed:
                os.kill(process, signal.SIGKILL)

    def _is_over(self, process: int, child: Child) -> bool:
        elapsed, most = time.monotonic() - child.started, self._seconds(child)
        if elapsed <= most or elapsed - child.asked.elapsed < max(1.0, most / 6):
            return False
        before, child.asked = child.asked, TimeSpent(elapsed, _computed_seconds(process))
        return is_over(most, before, child.asked)

    def _seconds(self, child: Child) -> float:
        return self.request.by_headers.get(child.name, self.request.seconds)

    def _memory(self, child: Child) -> int:
        by_headers = child.name in self.request.by_headers
        return self.request.parts_memory if by_headers else self.request.memory

    def _finish(self, process: int, child: Child, status: int, peak: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what it may have started itself
        self.say(
            Finished(
                child.name,
                round(time.monotonic() - child.started, 3),
                peak,
                self._facts(child, status),
            )
        )
        shutil.rmtree(child.folder, ignore_errors=True)  # 391 tiny checkpoints are a gigabyte

    def _facts(self, child: Child, status: int) -> SubjectFacts:
        """Read the facts that the child wrote; a check that it did not come to has a reason."""
        stage_file, result = child.folder / "stage", child.folder / "result.json"
        stage = stage_file.read_text() if stage_file.exists() else "start"
        reason = f"{child.killed or _describe_end(status, child.folder / 'log')} (at: {stage})"
        if not result.exists():
            # A kill may be our tiny model's fault; a crash, or the user's own object, is not.
            ours = child.killed is not None and not self.host.subjects_are_users
            return SubjectFacts("not-run" if ours else "failed", reason)
        facts = parse_facts(result.read_text())
        if facts.status != "judged":
            return facts
        # an early end takes nothing away from what was known by then
        missing = {rule: CheckFacts(reason=reason) for rule in self.request.checks}
        ended = "" if facts.checks.keys() >= missing.keys() else reason
        return replace(facts, reason=ended, checks={**missing, **facts.checks})


def _describe_end(status: int, log: Path) -> str:
    """Return how a process ended, and the last line that it wrote."""
    code = os.waitstatus_to_exitcode(status)
    how = (
        f"it was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"it exited with status {code}"
    )
    text = log.read_bytes()[-2000:].decode(errors="replace") if log.exists() else ""
    lines = text.strip().splitlines()
    return f"{how}, its last words: {lines[-1][:300]}" if lines else how


def _computed_seconds(group: int) -> float:
    """Return the CPU time of the processes of a group, and of those of theirs that ended."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # behind the name, which may have anything in it: state, parent, group, …
            words = file.read_text().rpartition(")")[2].split()
            if int(words[2]) == group:
                ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _run_child(host: "Host", request: ProbeRequest, name: str, folder: Path) -> None:
    """Audit a subject in this process, write `result.json`, and never return."""
    code = 1
    # Garbage from before the fork is not this process's to destroy: a process group of gloo, whose
    # threads are not here, ends it by SIGSEGV.
    gc.freeze()
    try:
        os.setpgid(0, 0)
        die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _write_facts(_audit_subject(host, request, name, folder), folder)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
        traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _write_facts(facts: SubjectFacts, folder: Path) -> None:
    (folder / "part").write_text(facts_line(facts))
    (folder / "part").rename(folder / "result.json")


def _audit_subject(host: "Host", request: ProbeRequest, name: str, folder: Path) -> SubjectFacts:
    """Make a subject and audit it; what is known is written before each longer check."""
    from .audit import judged_facts, run_checks
    from .threads import threads_in_order

    stage = "start"

    def progress(word: str) -> None:
        nonlocal stage
        stage = word
        (folder / "stage").write_text(word)

    paths: dict[str, str] = {}

    def judged(subject: "Subject", checks: "Checks") -> SubjectFacts:
        kept = any(
            rule in checks and checks[rule].items
            for rule in ("stale-reference", "stale-after-processing")
        )
        if kept and subject.paths and not paths:
            progress("the framework's own paths")
            with threads_in_order(late=True):
                paths.update(subject.paths(subject))
        return judged_facts(subject, checks, paths)

    work = folder / "work"
    work.mkdir()
    subject: Subject | None = None
    try:
        if name in request.by_headers:
            return host.judge_by_headers(name, work, request.checks, request.parts_memory, progress)
        subject = made = host.make_subject(name, work, progress)
        gc.collect()  # every object that is made later begins with this: it goes through less then
        gc.freeze()
        checks = run_checks(
            made,
            request.checks,
            request.slots,
            request.sources,
            progress,
            lambda checks: _write_facts(judged(made, checks), folder),
            request.formats,
            request.memory,
        )
        return judged(made, checks)
    except (NotRun, LoadFailed) as why:
        return SubjectFacts("not-run" if isinstance(why, NotRun) else "failed", str(why))
    except Exception as error:
        # What has loaded once, or is the user's own, fails by itself; else our tiny model may be
        # at fault, or how a large one was taken apart.
        users = host.subjects_are_users or (subject is not None and subject.origin == "given")
        return SubjectFacts("failed" if users else "not-run", f"{stage}: {error_text(error)}")
