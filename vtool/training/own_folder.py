"""Tell whose a folder is: a run starts in an empty one, or goes on in one that a run has begun.

The marker is the first file that a run writes, before anything else there is touched. Run folders
of an older vtool have none; they are known by two files that only a run writes together.
"""

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

import yaml

from vtool.diagnostics import Diagnostic, Findings
from vtool.version import __version__

LOCK = ".lock"
MARKER = ".vtool-run.json"
_SHOWN = 8
# In a folder with no more than this, nobody has begun anything: what a run leaves that is killed
# before its marker is whole, and what disks and file servers have in each folder of theirs.
_NOTHING = (MARKER, f".{MARKER}.writing", LOCK, "lost+found", ".snapshot")
# What is written, or removed, under these names would be so in another folder, were one a link.
# A run's checkpoints, profile and tracker's files may lie on another disk: nothing in them is
# removed but whole checkpoints.
_NEVER_A_LINK = (
    MARKER,
    LOCK,
    "base",
    "base.json",
    "config.yaml",
    "data.json",
    "export",
    "merged",
    "metrics.discarded.jsonl",
    "metrics.jsonl",
    "modeling.json",
    "predictions.jsonl",
    "processor",
    "processor.json",
    "proofs.json",
    "report.html",
    "result.json",
    "samples",
)


def has_marker(folder: Path) -> bool:
    """Return whether a run of this vtool, or of a later one, has begun a folder."""
    try:
        found = json.loads((folder / MARKER).read_text())
        return isinstance(found["begun_by"], str)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def write_marker(folder: Path) -> None:
    """Mark a folder as a run's, unless it is known as one already."""
    if not has_marker(folder) and not _is_older_run(folder):
        write_atomically(folder / MARKER, json.dumps({"begun_by": f"vtool {__version__}"}) + "\n")


def check_own(folder: Path) -> None:
    """Refuse a folder with files that no run has written, and links in place of a run's files.

    Raises:
        Findings: `run-folder-not-empty`, `run-folder-unwritable`; nothing there is touched.
        OSError: it cannot be read.
    """
    names = sorted(entry.name for entry in os.scandir(folder))
    others = [name for name in names if name not in _NOTHING]
    if (folder / LOCK).is_symlink():
        raise Findings(_link(folder / LOCK))
    if LOCK in names and not _is_empty_file(folder / LOCK):
        others.append(LOCK)
    if others and not has_marker(folder) and not _is_older_run(folder):
        shown = ", ".join(others[:_SHOWN]) + (" …" if len(others) > _SHOWN else "")
        message = f"{folder.absolute()} is not empty, and no run has begun it: there is {shown}"
        raise Findings(Diagnostic("run-folder-not-empty", message, parameter="run.dir"))
    if links := [name for name in names if name in _NEVER_A_LINK and (folder / name).is_symlink()]:
        raise Findings([_link(folder / name) for name in links])


def open_lock(folder: Path) -> IO[str]:
    """Open the file that a run's lock is on, and leave its content as it is.

    Raises:
        Findings: `run-folder-unwritable`: it is a link, or no file.
        OSError: it cannot be made or opened.
    """
    path = folder / LOCK
    try:
        lock = open_own(path, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise Findings(_link(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        message = f"{path.absolute()} is not a file"
        raise Findings(
            Diagnostic("run-folder-unwritable", message, f"remove it: {path}", "run.dir")
        )
    return os.fdopen(lock, "r+")


def open_own(path: str | Path, flags: int) -> int:
    """Open or make a file that is a run's own, never through a link; return its descriptor.

    It fits `open(…, opener=open_own)`.

    Raises:
        OSError: it is a link, or cannot be opened.
    """
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    temporary.unlink(missing_ok=True)  # of a run that was killed; a link would lead elsewhere
    with open(temporary, "x", opener=open_own) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _is_older_run(folder: Path) -> bool:
    """Return whether an older vtool, which wrote no marker, has begun a run here.

    Its first steps came after data.json, the ledger of its rows, and config.yaml, every setting in
    force. A recipe alone, or somebody's own data.json, is no run.
    """
    try:
        ledgers = json.loads((folder / "data.json").read_text())
        settings = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return False
    return all(_has(settings, name) for name in ("run", "model", "data", "train", "optim")) and all(
        _has(ledgers, "train", key) for key in ("files", "rows", "kept", "tokens")
    )


def _has(value: Any, *keys: str) -> bool:
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _is_empty_file(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def _link(path: Path) -> Diagnostic:
    message = (
        f"{path.absolute()} is a link, to {os.readlink(path)}: a run writes only files of its own,"
        " and would write that one"
    )
    return Diagnostic(
        "run-folder-unwritable",
        message,
        f"remove the link, or choose another run.dir: rm '{path}'",
        "run.dir",
    )
