"""A run's folder: whose it is, where the run goes on from, and its files."""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import yaml

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.training.checkpoint import checkpoints, damage, newest, step_of

# Settings that may differ from one start of a run to the next: they do not change what is computed.
FREE = ("launch.", "checkpoint.", "run.dir", "run.name", "data.workers")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins."""

    checkpoint: Path | None
    finished: bool
    warnings: tuple[Diagnostic, ...] = ()


class RunFolder:
    """The files of one run. Only rank 0 has one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self.config = path / "config.yaml"
        self.data = path / "data.json"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.predictions = path / "predictions.jsonl"
        self.samples = path / "samples"
        self.checkpoints = path / "checkpoints"
        self.processor = path / "processor"
        self.export = path / "export"

    def lock(self) -> None:
        """Make the folder and take it, until `unlock` or the end of the process, however it ends.

        Raises:
            Findings: `run-folder-unwritable`, `run-in-use`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            message = f"{self.path.absolute()}: {error.strerror}"
            raise Findings(Diagnostic("run-folder-unwritable", message, parameter="run.dir")) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise Findings(Diagnostic("run-in-use", f"another process is training in {self.path}", parameter="run.dir")) from error
        self._lock = lock

    def unlock(self) -> None:
        """Let the folder go, where this object has taken it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def start(self, run: Run, effective: Mapping[str, Any]) -> Start:
        """Compare the folder with this run's settings, and say where the run begins.

        Raises:
            Findings: `run-folder-taken`, `corrupt-checkpoint`, `no-checkpoint`.
        """
        if not self.config.exists():
            if run.checkpoint.resume in ("auto", "never"):
                return Start(None, finished=False)
            return self._from_elsewhere(Path(run.checkpoint.resume), effective)
        if changed := differences(yaml.safe_load(self.config.read_text()), effective):
            raise Findings(_taken(self.path, changed))
        if run.checkpoint.resume == "never":
            message = f"{self.path} holds this run already, and checkpoint.resume is never"
            raise Findings(Diagnostic("run-folder-taken", message, parameter="checkpoint.resume"))
        if self.result.exists():
            return Start(None, finished=True)
        found, damaged = newest(self.checkpoints)
        if found is None and damaged:
            raise Findings(damaged)
        if found is None and run.checkpoint.resume != "auto":  # stopped before its first checkpoint: it begins where it began
            return self._from_elsewhere(Path(run.checkpoint.resume), effective)
        return Start(found, finished=False, warnings=tuple(replace(finding, severity="warning") for finding in damaged))

    def _from_elsewhere(self, source: Path, effective: Mapping[str, Any]) -> Start:
        """Begin from a checkpoint, or a run, in another folder."""
        folder = source if source.name.startswith("step-") else source / "checkpoints"
        if folder is source:
            problem = damage(source)
            if problem:
                raise Findings(Diagnostic("corrupt-checkpoint", f"{source}: {problem}", parameter="checkpoint.resume"))
            found: Path | None = source
        else:
            found, damaged = newest(folder)
            if found is None:
                raise Findings(damaged or [Diagnostic("no-checkpoint", f"{source} has no checkpoint", parameter="checkpoint.resume")])
        assert found is not None
        config = found.parent.parent / "config.yaml"
        if config.exists() and (changed := differences(yaml.safe_load(config.read_text()), effective)):
            raise Findings(_taken(found, changed))
        return Start(found, finished=False)

    def set_aside_damaged(self, start: Start) -> None:
        """Rename the checkpoints newer than the one to go on from: the run will write these steps again, and nothing is thrown away."""
        for path in checkpoints(self.checkpoints):
            if start.checkpoint is None or step_of(path) > step_of(start.checkpoint):
                path.rename(path.with_name(f"{path.name}.damaged-{os.urandom(3).hex()}"))

    def rewind_metrics(self, step: int) -> None:
        """Move the lines of `metrics.jsonl` past a step to `metrics.discarded.jsonl`: they will be written again."""
        if not self.metrics.exists():
            return
        kept: list[str] = []
        discarded: list[str] = []
        for line in self.metrics.read_text(errors="replace").splitlines(keepends=True):
            (kept if _step_of(line) <= step else discarded).append(line)
        if discarded:
            with (self.path / "metrics.discarded.jsonl").open("a") as file:
                file.writelines(line if line.endswith("\n") else line + "\n" for line in discarded)
            write_atomically(self.metrics, "".join(kept))

    def check_rows(self, ledgers: Mapping[str, Any]) -> None:
        """Hold the rows of a run that goes on against those that it began with.

        Raises:
            Findings: `data-changed`, naming the files.
        """
        if not self.config.exists():  # written after the rows: a run that has not got so far has no rows of its own yet
            return
        before = json.loads(self.data.read_text())
        changed = [split for split in ledgers if before.get(split, {}).get("files") != ledgers[split]["files"]]
        if changed:
            named = ", ".join(f"data.{split} ({_files(before.get(split, {}))} → {_files(ledgers[split])})" for split in changed)
            raise Findings(Diagnostic("data-changed", f"{self.path} began with other rows: {named}", parameter=f"data.{changed[0]}"))


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Dotted settings that differ between two effective configs, with both values; those of `FREE` apart."""
    old, new = _leaves(before), _leaves(now)
    keys = [key for key in sorted(old.keys() | new.keys()) if not key.startswith(FREE)]
    return [f"{key}: {json.dumps(old.get(key))} → {json.dumps(new.get(key))}" for key in keys if old.get(key) != new.get(key)]


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= _leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found


def _taken(path: Path, changed: list[str]) -> Diagnostic:
    listed = "\n".join(f"  {change}" for change in changed)
    return Diagnostic("run-folder-taken", f"{path} is a run with other settings:\n{listed}", parameter=changed[0].partition(":")[0])


def _files(ledger: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{file.get('path', file['format'])}: {file['rows']} rows, {file.get('sha256', '')[:8]}" for file in ledger.get("files", [])
    )


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line that was cut off in the middle
        return float("inf")
