"""`vtool validate-config --live`: start the processes that build a run's objects, and say what they have found. Imports no torch itself."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.load import Loaded
from vtool.config.schema import Run
from vtool.config.settings import all_settings
from vtool.diagnostics import Diagnostic
from vtool.verify.leaves import ACTS_LATER, NOT_READABLE
from vtool.verify.live_task import PATIENCE, TASK, Task, Told
from vtool.verify.stand_in import StandIn, stand_in

ASKED = ("objects-not-built", "setting-not-arrived", "device-not-used")
# This very package, wherever it is, and nothing else of the folder that it is in, or of the one that the user is in.
_START = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import vtool; sys.path.pop(0); "
    "from vtool.verify.live_rank import main; main(sys.argv[1], int(sys.argv[2]))"
)
# How long a process may take to end after another one has found something, and perhaps left it waiting.
GRACE = 3.0


@dataclass(frozen=True, slots=True)
class Live:
    """What --live has come to."""

    checks: Mapping[str, str]
    findings: tuple[Diagnostic, ...] = ()
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """For people: what was read back, what was made smaller for that, and what could not be told."""


def not_run(reason: str = "") -> Live:
    """Nothing was built."""
    return Live(dict.fromkeys(ASKED, "not-run"), details={rule: {"reason": reason} for rule in ASKED} if reason else {})


def check_live(loaded: Loaded) -> Live:
    """Build the objects of a recipe that the rules have nothing against, and hold its settings against them."""
    if not isinstance(loaded.settings, Run):
        return not_run("a recipe of kind load_check builds nothing")
    small = stand_in(loaded.run)
    everyone = _processes(loaded, small)
    findings = tuple(dict.fromkeys(finding for told in everyone for finding in told.findings))
    failed = {finding.rule for finding in findings}
    if failed - {"setting-not-arrived", "device-not-used"}:
        checks = {rule: "failed" if rule in failed else "not-run" for rule in ASKED} | dict.fromkeys(failed, "failed")
        return Live(checks, findings)
    checks = {rule: "failed" if rule in failed else "passed" for rule in ASKED}
    details: dict[str, dict[str, Any]] = {}
    if "device.kind" in small.not_asked:
        checks["device-not-used"] = "not-run"
        details["device-not-used"] = {"reason": small.not_asked["device.kind"]}
    told = _read(everyone, small)
    details["setting-not-arrived"] = {"processes": small.processes, **told}
    return Live(checks, findings, details, tuple(_lines(small, told)))


def _read(everyone: list[Told], small: StandIn) -> dict[str, Any]:
    """By what is known of them, the settings that the recipe's kinds of engine, rows and adapters have."""
    leaves = list(dict.fromkeys(setting.name for setting in all_settings() if not setting.groups))
    read = frozenset[str]().union(*(told.read for told in everyone))
    unshown = frozenset[str].intersection(*(told.unseen for told in everyone)) if everyone else frozenset()
    # A decay that is asked of a part is asked of what is trained in it, and a frozen part has nothing of it.
    missed = {name: _why(name, small) for name in leaves if name in unshown and not name.startswith("optim.groups.")}
    missed = {name: why for name, why in missed.items() if name not in small.not_asked}
    return {
        "read": [name for name in leaves if name in read and name not in small.not_asked],
        "acts_later": [name for name in leaves if name in ACTS_LATER],
        "not_readable": NOT_READABLE,
        "not_asked": small.not_asked | missed,
        "smaller": list(small.changes),
    }


def _why(name: str, small: StandIn) -> str:
    if name.startswith("engine.") and small.processes == 1:
        return "one process has no such object"
    if name == "data.micro_batch_size" and small.run.data.packing != "none":
        return "a packed row has as many as data.micro_batch_tokens has room for"
    if name.startswith("data."):
        return "the file is large, or not here, and was left closed"
    return "on a CPU it is no choice" if name == "engine.cpu_offload" else "it has no object in this run"


def _lines(small: StandIn, told: Mapping[str, Any]) -> list[str]:
    several = "es" * (small.processes > 1)
    lines = [
        f"live: {len(told['read'])} settings read back from the objects of {small.processes} process{several}; "
        f"{len(told['acts_later'])} act later, and have a test each"
    ]
    lines += [f"live: smaller here: {change}" for change in told["smaller"]]
    reasons: dict[str, list[str]] = {}
    for name, why in told["not_asked"].items():
        if name != "device.kind":  # a check of its own
            reasons.setdefault(why, []).append(name)
    return lines + [f"live: not asked here: {', '.join(names)}: {why}" for why, names in reasons.items()]


def _processes(loaded: Loaded, small: StandIn) -> list[Told]:
    """What each process has found; of one that has ended without a word, that."""
    unset = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    with tempfile.TemporaryDirectory(prefix="vtool-live-") as name:
        folder = Path(name)
        (folder / TASK).write_bytes(pickle.dumps(Task(loaded.run, small, loaded.origins)))
        started = []
        try:
            for rank in range(small.processes):
                with (folder / f"{rank}.log").open("wb") as log:
                    command = [sys.executable, "-P", "-c", _START, str(folder), str(rank)]
                    started.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            _wait(started, folder)
        finally:
            for process in started:
                process.kill()
                process.wait()
        found = [_told(folder, rank, process.returncode) for rank, process in enumerate(started)]
        return [told for told in found if told is not None]


def _wait(started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all have ended, or one has found something and the others have had some time to do so."""
    end = time.monotonic() + PATIENCE
    while any(process.poll() is None for process in started) and time.monotonic() < end:
        time.sleep(0.05)
        stopped = [rank for rank, process in enumerate(started) if process.poll() is not None]
        if any(_found_something(folder, rank) for rank in stopped):
            end = min(end, time.monotonic() + GRACE)


def _found_something(folder: Path, rank: int) -> bool:
    file = folder / f"{rank}.pkl"
    return not file.exists() or bool(pickle.loads(file.read_bytes()).findings)


def _told(folder: Path, rank: int, code: int) -> Told | None:
    """None: of a process that was waiting for another one, which has spoken."""
    file, log = folder / f"{rank}.pkl", folder / f"{rank}.log"
    if file.exists():
        told: Told = pickle.loads(file.read_bytes())
        return told
    others = [other for other in folder.glob("*.pkl") if other.name != TASK]
    if code == -signal.SIGKILL and others:
        return None
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    message = f"process {rank} of --live ended with {how}{f': {last[0]}' if last else ''}"
    return Told((Diagnostic("objects-not-built", message),))
