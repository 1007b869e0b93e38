"""Imports the framework once, then gives each subject a process of its own:

a crash or a hang is that subject's own result.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

HOSTS = {
    "vllm": ".vllm_host",
    "transformers": ".transformers_host",
    "sglang": ".sglang_host",
    "python": ".file_host",
}
TICK = 0.01
PR_SET_PDEATHSIG = 1


def serve(request_file: str) -> int:
    """Answer the request:

    a line of JSON for the start, for each subject, and for the end, through the descriptor that it
    names.
    """
    request = json.loads(Path(request_file).read_text())
    out = os.fdopen(request["descriptor"], "w", buffering=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # it does not outlive who has asked
    try:
        import torch
    except ImportError as error:
        _say(out, event="unusable", reason=f"this interpreter cannot import torch: {error}")
        return 0
    torch.set_num_threads(1)
    importlib.import_module(".audit", __package__)  # before the forks, that it is imported once
    host = importlib.import_module(HOSTS[request["host"]], __package__)
    started = time.monotonic()
    try:
        about = dict(
            host.prepare(
                several=request["subjects"] is None or len(request["subjects"]) > request["jobs"]
            )
        )
        known = host.names()
    except Exception as error:
        _say(
            out,
            event="unusable",
            reason=(
                f"this interpreter cannot import {request['host']}: {type(error).__name__}:"
                f" {_first_line(error)}"
            ),
        )
        return 0
    subjects = known if request["subjects"] is None else request["subjects"]
    if request.get("match") and request["subjects"] is None:
        from fnmatch import fnmatchcase

        subjects = [name for name in known if fnmatchcase(name, request["match"])]
    gc.collect()
    # what is imported is never looked through again, and stays shared with the children
    gc.freeze()
    _say(
        out,
        event="ready",
        **about,
        torch=torch.__version__,
        seconds=time.monotonic() - started,
        known=known,
        subjects=subjects,
    )
    with tempfile.TemporaryDirectory(prefix="vtool-load-") as scratch:
        Pool(host, request, Path(scratch), out).run(subjects)
    _say(out, event="done")
    return 0


def _say(out: TextIO, **fields: Any) -> None:
    out.write(json.dumps(fields, default=str) + "\n")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@dataclass
class Child:
    """A subject's process."""

    name: str
    folder: Path
    started: float
    peak: int = 0
    killed: str | None = None


class Pool:
    """Runs `jobs` subjects at a time, within limits of seconds and of resident bytes each."""

    def __init__(
        self, host: ModuleType, request: dict[str, Any], scratch: Path, out: TextIO
    ) -> None:
        self.host, self.request, self.scratch, self.out = host, request, scratch, out
        self.children: dict[int, Child] = {}

    def run(self, subjects: list[str]) -> None:
        """Start and watch them all."""
        waiting = list(enumerate(subjects))
        try:
            while waiting or self.children:
                while waiting and len(self.children) < self.request["jobs"]:
                    number, name = waiting.pop(0)
                    self._start(number, name)
                self._look()
                time.sleep(TICK)
        finally:
            for process in self.children:
                os.killpg(process, signal.SIGKILL)

    def _start(self, number: int, name: str) -> None:
        folder = self.scratch / str(number)
        folder.mkdir()
        process = os.fork()
        if process == 0:
            _live(self.host, self.request, name, folder)
        self.children[process] = Child(name, folder, time.monotonic())

    def _look(self) -> None:
        for process, child in list(self.children.items()):
            done, status, usage = os.wait4(process, os.WNOHANG)
            if done:
                del self.children[process]
                self._finish(process, child, status, usage.ru_maxrss * 1024)
                continue
            resident = _resident(process)
            child.peak = max(child.peak, resident)
            if time.monotonic() - child.started > self.request["seconds"]:
                child.killed = f"it took longer than {self.request['seconds']:g} seconds"
            elif resident > self.request["memory"]:
                child.killed = f"it took more than {self.request['memory'] / 2**20:.0f} MiB"
            if child.killed:
                os.kill(process, signal.SIGKILL)

    def _finish(self, process: int, child: Child, status: int, peak: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what it may have started itself
        result = child.folder / "result.json"
        stage = (
            (child.folder / "stage").read_text() if (child.folder / "stage").exists() else "start"
        )
        how = child.killed or _end(status, child.folder / "log")
        if result.exists():
            facts = json.loads(result.read_text())
            # an end before its time takes nothing away from what was known by then
            if facts["status"] == "judged":
                facts["checks"] = {
                    rule: {"reason": f"{how} (at: {stage})"} for rule in self.request["checks"]
                } | facts["checks"]
        else:
            # What is stopped may be our tiny model's fault; what crashes, or is the user's own, is
            # its own.
            ours = child.killed is not None and self.request["host"] != "python"
            facts = {"status": "not-run" if ours else "failed", "reason": f"{how} (at: {stage})"}
        _say(
            self.out,
            event="subject",
            subject=child.name,
            seconds=round(time.monotonic() - child.started, 3),
            peak=peak,
            **facts,
        )
        shutil.rmtree(child.folder, ignore_errors=True)  # 391 tiny checkpoints are a gigabyte


def _end(status: int, log: Path) -> str:
    """How a process ended, and the last line that it wrote."""
    ended = os.waitstatus_to_exitcode(status)
    how = (
        f"it was ended by {signal.Signals(-ended).name}"
        if ended < 0
        else f"it exited with status {ended}"
    )
    said = (
        log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        if log.exists()
        else []
    )
    return f"{how}, its last words: {said[-1][:300]}" if said else how


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _live(host: ModuleType, request: dict[str, Any], name: str, folder: Path) -> None:
    """The life of a child: writes `result.json`, and never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _keep(_facts(host, request, name, folder), folder)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
        traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _keep(facts: dict[str, Any], folder: Path) -> None:
    (folder / "part").write_text(json.dumps(facts, default=str))
    (folder / "part").rename(folder / "result.json")


def _facts(host: ModuleType, request: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    from .audit import audit, text_of
    from .subject import LoadFailed, NotRun

    stage = ["start"]

    def progress(word: str) -> None:
        stage[0] = word
        (folder / "stage").write_text(word)

    paths: dict[str, str] = {}

    def judged(checks: dict[str, Any]) -> dict[str, Any]:
        assert subject is not None
        if (
            subject.paths
            and not paths
            and any(
                checks.get(rule, {}).get("items")
                for rule in ("stale-reference", "stale-after-processing")
            )
        ):
            progress("the framework's own paths")
            paths.update(subject.paths(subject))
        return {
            "status": "judged",
            "origin": subject.origin,
            "streams": subject.streams,
            "about": dict(subject.about),
            "checks": checks,
            "paths": paths,
        }

    work = folder / "work"
    work.mkdir()
    subject = None
    try:
        subject = host.subject(
            name,
            work,
            progress,
            **({"checkpoint": request["checkpoint"]} if request["host"] == "python" else {}),
        )
        keep = lambda checks: _keep(judged(checks), folder)  # noqa: E731
        return judged(
            audit(subject, request["checks"], request["slots"], request["sources"], progress, keep)
        )
    except NotRun as why:
        return {"status": "not-run", "reason": str(why)}
    except LoadFailed as why:
        return {"status": "failed", "reason": str(why)}
    except Exception as error:
        # What has loaded once, or is the user's own, fails by itself; else our tiny model may be at
        # fault.
        own = request["host"] == "python" or (subject is not None and subject.origin == "given")
        return {"status": "failed" if own else "not-run", "reason": f"{stage[0]}: {text_of(error)}"}
