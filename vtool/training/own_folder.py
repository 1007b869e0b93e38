"""Find whose a folder is: a run starts in an empty one, or resumes in one that a run has begun.

The marker is the first file that a run writes, before anything else there is touched. Run folders
of an older vtool have none; they are known by two files that only a run writes together.
"""

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

import yaml

from vtool.contents import read_small_json, small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.version import __version__

LOCK = ".lock"
MARKER = ".vtool-run.json"
_SHOWN = 8
# In a folder with no more than this, nobody has begun anything: what a run leaves that is killed
# before its marker is whole, and what disks and file servers have in each folder of theirs.
_NOTHING = (MARKER, f".{MARKER}.writing", LOCK, "lost+found", ".snapshot")
# What a run replaces, or removes from: another run in there would go with it.
_FOLDERS = ("base", "checkpoints", "export", "merged", "processor", "profile", "samples")
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
    "extended.json",
    "from.json",
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
    "validation.jsonl",
)


def has_marker(folder: Path) -> bool:
    """Return whether a run of this vtool, or of a later one, has begun a folder."""
    try:
        found = read_small_json(folder / MARKER)
        return isinstance(found["begun_by"], str)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def write_marker(folder: Path) -> None:
    """Mark a folder as a run's, unless it is known as one already."""
    if not has_marker(folder) and not _is_older_run(folder):
        write_atomically(folder / MARKER, json.dumps({"begun_by": f"vtool {__version__}"}) + "\n")


class _Plain(yaml.SafeLoader):
    """A reader of what vtool has written, in which nothing is an alias of something else."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, which vtool writes none of")
        return super().compose_node(parent, index)


def written_settings(file: Path) -> Any:
    """Return the settings in a run's config.yaml.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        return yaml.load(small_file(file), _Plain)  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not YAML as vtool writes it: {error}") from error


def check_place(folder: Path) -> None:
    """Refuse a place in which no run can be kept, before a folder is made there.

    Raises:
        Findings: `run-folder-taken`, for a part of another run's folder that this one replaces;
            `run-folder-unwritable`, for a file.
        OSError, ValueError: it cannot be looked at.
    """
    here = Path(os.path.realpath(folder))
    for outer in here.parents:
        part = here.relative_to(outer).parts[0]
        if part in _FOLDERS and has_marker(outer):
            message = (
                f"{folder.absolute()} lies in {part}/ of the run in {outer}, which that run"
                " replaces or empties as it continues"
            )
            help = "choose a folder next to that run's: run.dir=FOLDER"
            raise Findings(Diagnostic("run-folder-taken", message, help, "run.dir"))
    if folder.is_symlink() and not folder.exists():
        problem = f"is a link to {os.readlink(folder)}, which is not there"
    elif folder.exists() and not folder.is_dir():
        problem = "is a file, not a folder"
    else:
        return
    message = f"{folder.absolute()} {problem}"
    help = "name a new folder, or an empty one: run.dir=FOLDER"
    raise Findings(Diagnostic("run-folder-unwritable", message, help, "run.dir"))


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
    # to read a named pipe, or to write into it, is to wait without end; and what cannot be saved
    # for a file in its way is reported now, and not after the first steps
    if wrong := [name for name in names if not _is_as_meant(folder / name)]:
        raise Findings([_no_file(folder / name) for name in wrong])


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
        raise Findings(_no_file(path))
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
        ledgers = read_small_json(folder / "data.json")
        settings = written_settings(folder / "config.yaml")
    except (OSError, ValueError, RecursionError):
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


def _is_as_meant(path: Path) -> bool:
    """Return whether one of a run's folders is a folder, and one of its files no pipe or device."""
    if path.name in _FOLDERS:
        return path.is_dir() or not path.exists()
    if path.name not in _NEVER_A_LINK:
        return True
    kind = path.stat().st_mode
    return stat.S_ISREG(kind) or stat.S_ISDIR(kind)


def _no_file(path: Path) -> Diagnostic:
    message = f"{path.absolute()} is not a {'folder' if path.name in _FOLDERS else 'file'}"
    return Diagnostic("run-folder-unwritable", message, f"remove it: rm -r '{path}'", "run.dir")


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
