"""Checkpoints: digested, renamed when whole, and never opened if a byte has changed."""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vtool.diagnostics import Diagnostic, Findings
from vtool.export.file_modes import share_mode

MANIFEST = "manifest.json"
_TENSORS = ("model", "optimizer", "progress")
_FILES = (*(f"{name}.safetensors" for name in _TENSORS), "state.json")
_NAME = re.compile(r"step-[0-9]+")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that a run resumes from."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    progress: dict[str, Tensor]
    """`visits` int64 [rows]: how often each kept row has been trained on."""
    state: dict[str, Any]
    """Counters, as JSON."""


def checkpoint_name(step: int) -> str:
    """Return the folder's name of a step's checkpoint."""
    return f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, from its folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def save(folder: Path, snapshot: Snapshot, keep_last: int, synced: Path | None = None) -> Path:
    """Write a checkpoint under `folder`, then remove all but the best and the newest `keep_last`.

    Args:
        synced: a file whose bytes must be on the disk before the checkpoint is there.

    Raises:
        Findings: `checkpoint-not-saved`; what was there before is untouched.
    """
    target = folder / checkpoint_name(snapshot.step)
    temporary = folder / f".writing-{target.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name in _TENSORS:
            save_file(
                {key: value.contiguous() for key, value in getattr(snapshot, name).items()},
                temporary / f"{name}.safetensors",
            )
        (temporary / "state.json").write_text(
            json.dumps({"step": snapshot.step, **snapshot.state}, indent=1)
        )
        share_mode(temporary, like="state.json")
        digests = {
            file.name: {"bytes": file.stat().st_size, "sha256": _digest(file)}
            for file in sorted(temporary.iterdir())
        }
        (temporary / MANIFEST).write_text(json.dumps(digests, indent=1))
        for path in (*temporary.iterdir(), temporary):
            _flush(path)
        if synced is not None and synced.exists():
            _flush(synced)
            _flush(synced.parent)
        os.rename(temporary, target)
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        shutil.rmtree(temporary, ignore_errors=True)
        message = f"{target} could not be written: {error} ({free / 2**20:.0f} MiB are free there)"
        raise Findings(Diagnostic("checkpoint-not-saved", message, parameter="run.dir")) from error
    try:
        _flush(folder)
    except OSError as error:  # it is there, and whole: only its name might be lost with the power
        _say([Diagnostic("checkpoint-not-synced", f"{target}: {error.strerror}")])
    best = ((snapshot.state.get("marks") or {}).get("best") or {}).get("step")
    for old in (each for each in checkpoints(folder)[:-keep_last] if step_of(each) != best):
        # What cannot be removed costs space, not the run; and what is half removed is no checkpoint
        # any more.
        with suppress(OSError):
            doomed = old.rename(old.with_name(f".removing-{old.name}"))
            shutil.rmtree(doomed)
    return target


class Writer:
    """A writer of checkpoints, one at a time.

    The loop waits for it or, `asynchronous`, a thread writes while the loop goes on.

    A thread's failure is raised by the next `save` or `wait`. Leaving the context waits for what is
    being written, however it is left.
    """

    def __init__(
        self, folder: Path, keep_last: int, *, asynchronous: bool, synced: Path | None = None
    ) -> None:
        self._to = folder
        self._how = (keep_last, synced)
        self._thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._writing: Future[Path] | None = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, _: object
    ) -> None:
        if kind is None:
            self.wait()
        elif self._writing is not None and isinstance(lost := self._writing.exception(), Findings):
            # a full disk stops the loop's own files too: that is one fault, told with what it costs
            if isinstance(raised, Findings) and _same_fault(raised, lost):
                raise lost from raised
            _say(lost.diagnostics)  # beside what is being raised

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, or begin to.

        Its tensors may be a model's own: where the loop goes on, they are copied first.

        Raises:
            Findings: `checkpoint-not-saved`, of this one or of the one before it.
        """
        self.wait()
        if self._thread is None:
            save(self._to, snapshot, *self._how)
        else:
            for tensors in (snapshot.model, snapshot.optimizer, snapshot.progress):
                # one by one, so that what an engine has gathered is freed on the way
                for name in tensors:
                    tensors[name] = tensors[name].to("cpu", copy=True)
            self._writing = self._thread.submit(save, self._to, snapshot, *self._how)

    def wait(self) -> None:
        """Wait until the checkpoint being written is on the disk.

        Raises:
            Findings: `checkpoint-not-saved`.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _same_fault(one: Findings, other: Findings) -> bool:
    """Return whether both were raised of the same error of the operating system."""
    first, second = (_system_error(found.__cause__) for found in (one, other))
    return first is not None and first == second


def _system_error(cause: BaseException | None) -> int | None:
    if isinstance(cause, OSError):
        return cause.errno
    # safetensors and tokenizers say it in words
    found = re.search(r"\(os error (\d+)\)", str(cause))
    return int(found.group(1)) if found else None


def _say(findings: Sequence[Diagnostic]) -> None:
    for one in findings:
        print(f"{one.severity}[{one.rule} {one.code}]: {one.message}", file=sys.stderr)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints under a folder, oldest first."""
    return sorted(
        (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=step_of
    )


def damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint's files, or None if no byte has changed."""
    try:
        return next(_damages(checkpoint), None)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename or MANIFEST).name} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read: {error}"


def _damages(checkpoint: Path) -> Iterator[str]:
    if not _NAME.fullmatch(checkpoint.name):
        yield "the name of its folder is not step- and a number"
    # to open a named pipe is to wait without end
    if pipes := [
        name
        for name in (MANIFEST, *_FILES)
        if (checkpoint / name).exists() and not (checkpoint / name).is_file()
    ]:
        yield f"{', '.join(pipes)} cannot be read: no file"
    manifest: Mapping[str, Any] = json.loads((checkpoint / MANIFEST).read_text())
    if unnamed := [name for name in _FILES if name not in manifest]:
        yield f"{MANIFEST} does not name {', '.join(unnamed)}"
    for name, written in manifest.items():
        if Path(name).name != name:
            yield f"{MANIFEST} names {name!r}, which is not a file beside it"
        if (size := (checkpoint / name).stat().st_size) != written["bytes"]:
            yield f"{name} has {size} bytes; {written['bytes']} were written"
        if _digest(checkpoint / name) != written["sha256"]:
            yield f"{name} has other bytes than were written"
    try:
        step = json.loads((checkpoint / "state.json").read_text())["step"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"state.json cannot be read: {type(error).__name__} {error}"
    else:
        if step != step_of(checkpoint):
            yield f"its folder is named {checkpoint.name}, and its state is that of step {step}"


def load(checkpoint: Path) -> Snapshot:
    """Open a checkpoint whose digests have been checked."""
    state = json.loads((checkpoint / "state.json").read_text())
    tensors = {name: load_file(checkpoint / f"{name}.safetensors") for name in _TENSORS}
    return Snapshot(step=state.pop("step"), state=state, **tensors)


def newest(folder: Path) -> tuple[Path | None, list[Diagnostic]]:
    """Return a folder's newest whole checkpoint, and a finding for each newer damaged one."""
    findings: list[Diagnostic] = []
    for path in reversed(checkpoints(folder)):
        if (problem := damage(path)) is None:
            return path, findings
        findings.append(
            Diagnostic("corrupt-checkpoint", f"{path}: {problem}", parameter="checkpoint.resume")
        )
    return None, findings


def best_before(checkpoint: Path) -> tuple[Path | None, list[Diagnostic]]:
    """Return the best checkpoint of a run, as one of it that is whole tells.

    Returns:
        None where none was kept as the best, or where that one is damaged: with a finding then.
    """
    try:
        state = json.loads((checkpoint / "state.json").read_text())
        step = ((state.get("marks") or {}).get("best") or {}).get("step")
    except (OSError, ValueError, AttributeError):
        return None, []
    if step is None:
        return None, []
    best = checkpoint.with_name(checkpoint_name(step))
    if problem := damage(best):
        message = f"{best}, the best by its score: {problem}"
        return None, [Diagnostic("corrupt-checkpoint", message, parameter="checkpoint.keep_best")]
    return best, []


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Flush a file to the disk: a rename can otherwise outlive the bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
