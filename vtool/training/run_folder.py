"""A run's folder: its lock, and its files."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import yaml
from safetensors import SafetensorError

from vtool.diagnostics import Diagnostic, Findings
from vtool.models.base_files import BASE_RECORD
from vtool.models.model_class import MODELING_RECORD
from vtool.training.checkpoint import checkpoints, step_of
from vtool.training.metrics import read_metric_lines, step_of_line
from vtool.training.own_folder import (
    LOCK,
    check_own,
    check_place,
    open_lock,
    open_own,
    write_atomically,
    write_marker,
)
from vtool.words import first_line


class RunFolder:
    """The files of one run. Only rank 0 has one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self.config = path / "config.yaml"
        self.data = path / "data.json"
        self.proofs = path / "proofs.json"
        self.metrics = path / "metrics.jsonl"
        self.asked_again = path / "validation.jsonl"
        self.result = path / "result.json"
        self.predictions = path / "predictions.jsonl"
        self.samples = path / "samples"
        self.checkpoints = path / "checkpoints"
        self.modeling = path / MODELING_RECORD
        self.processor = path / "processor"
        self.processor_files = path / "processor.json"
        self.export = path / "export"
        self.merged = path / "merged"
        self.base = path / "base"
        self.base_files = path / BASE_RECORD
        self.extensions = path / "extended.json"
        self.begun_from = path / "from.json"

    def lock(self) -> None:
        """Make the folder and lock it, until `unlock` or the end of the process.

        Raises:
            Findings: `run-folder-not-empty`, `run-folder-unwritable`, `run-in-use`; nothing there
                is touched.
        """
        with self._usable():
            check_place(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            check_own(self.path)
            lock = open_lock(self.path)
        self._take(lock)
        self._lock = lock
        try:
            with self.writing():
                write_marker(self.path)
        except Findings:
            self.unlock()
            raise

    def look(self) -> None:
        """Check what `lock` checks, and leave no trace: nothing is made or held.

        Raises:
            Findings: as `lock`.
        """
        with self._usable():
            check_place(self.path)
            here = self.path.absolute()
            there = next(one for one in (here, *here.parents) if one.exists())
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(there, os.W_OK | os.X_OK):
                frozen = os.statvfs(there).f_flag & os.ST_RDONLY
                number = errno.EROFS if frozen else errno.EACCES
                raise OSError(number, os.strerror(number))
            if there != here:
                return
            check_own(self.path)
            if not (self.path / LOCK).exists():
                return
            lock = open_lock(self.path)
        self._take(lock)
        lock.close()

    def _take(self, lock: IO[str]) -> None:
        """Lock an opened file, which is closed where another process holds it.

        Raises:
            Findings: `run-folder-unwritable`, `run-in-use`.
        """
        # `vtool report` takes the lock for a moment, to see whether anybody trains here.
        for left in reversed(range(10)):
            try:
                # A record lock is this process's alone: the data workers that it forks do not hold
                # the folder after it has been killed.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    lock.close()
                    message = f"{self.path.absolute()} cannot be locked: {error.strerror}"
                    help = (
                        "choose a run.dir on a disk with file locks; NFS has them where it is"
                        " mounted without nolock, and rpc.statd runs (docs/reliability.md)"
                    )
                    raise Findings(
                        Diagnostic("run-folder-unwritable", message, help, "run.dir")
                    ) from error
                if left == 0:
                    lock.close()
                    message = f"another process is training in {self.path}"
                    raise Findings(
                        Diagnostic("run-in-use", message, parameter="run.dir")
                    ) from error
                time.sleep(0.02)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Turn what the system says of the folder into a finding.

        Raises:
            Findings: `run-folder-unwritable`.
        """
        try:
            yield
        except Findings:
            raise
        except (OSError, ValueError) as error:  # a ValueError of a name that no file can have
            raise Findings(self._unusable(error)) from error

    def _unusable(self, error: OSError | ValueError) -> Diagnostic:
        name = str(self.path.absolute())
        if not name.isprintable():
            name = repr(name)
        if len(name) > 300:
            name = f"{name[:120]}…{name[-60:]} ({len(name):,} characters)"
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        help = None
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            help = "choose a shorter run.dir: most disks take 255 bytes between two slashes"
        elif isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
            help = "choose a run.dir that you may write to, or have its permissions changed"
        return Diagnostic("run-folder-unwritable", f"{name}: {reason}", help, "run.dir")

    def unlock(self) -> None:
        """Release the folder, if this object holds it."""
        if self._lock is not None:
            # Also where the disk says no: the lock has gone with the descriptor, and what stopped
            # the run is reported already.
            with suppress(OSError):
                self._lock.close()
            self._lock = None

    def set_aside_newer(self, checkpoint: Path | None) -> None:
        """Rename the checkpoints newer than the one to resume from; they will be written again.

        What a run that was killed has half written or half removed goes: it is no checkpoint.

        Raises:
            Findings: `run-folder-unwritable`.
        """
        for kind in ("writing", "removing"):
            for half in self.checkpoints.glob(f".{kind}-step-*"):
                shutil.rmtree(half, ignore_errors=True)
        for path in checkpoints(self.checkpoints):
            if checkpoint is None or step_of(path) > step_of(checkpoint):
                with self.writing():
                    path.rename(path.with_name(f"{path.name}.set-aside-{os.urandom(3).hex()}"))

    def rewind(self, step: int) -> None:
        """Move the lines of `metrics.jsonl` past a step to `metrics.discarded.jsonl`.

        Those of `validation.jsonl` are only removed: they are written again.

        Raises:
            Findings: `run-folder-unwritable`.
        """
        with self.writing():
            asked = read_metric_lines(self.asked_again)
            if past := [line for line in asked if not step_of_line(line) <= step]:
                left = "".join(line for line in asked if line not in past)
                write_atomically(self.asked_again, left)
            lines = read_metric_lines(self.metrics)
            kept = [line for line in lines if step_of_line(line) <= step]
            if len(kept) == len(lines):
                return
            with open(self.path / "metrics.discarded.jsonl", "a", opener=open_own) as file:
                file.writelines(
                    line if line.endswith("\n") else line + "\n"
                    for line in lines
                    if not step_of_line(line) <= step
                )
            write_atomically(self.metrics, "".join(kept))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a failed write (a full disk, a lost permission) into a finding.

        Raises:
            Findings: `run-folder-unwritable`.
        """
        try:
            yield
        except Exception as error:
            # The tokenizers library raises a bare Exception.
            if not (isinstance(error, OSError | SafetensorError) or type(error) is Exception):
                raise
            message = f"{self.path}: {error} ({_free(self.path)})"
            raise Findings(
                Diagnostic("run-folder-unwritable", message, parameter="run.dir")
            ) from error


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn a file of a run that is missing or damaged into a finding.

    Raises:
        Findings: `not-a-run`.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        AttributeError,
        KeyError,
        TypeError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        message = f"{file} cannot be read: {first_line(error)}"
        raise Findings(Diagnostic("not-a-run", message, parameter="run.dir"), fatal=True) from error


def _free(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path).free / 2**20:.0f} MiB are free there"
    except OSError:
        return "the folder is gone"
