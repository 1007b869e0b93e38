"""Checkpoints: digested, renamed when whole, and never opened if a byte has changed."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.contract import Owner
from vtool.engines.ranks import Ranks
from vtool.export.file_modes import share_mode
from vtool.training.checkpoint_files import (
    MANIFEST,
    TENSOR_KINDS,
    SavedTensors,
    Shares,
    ShareWriter,
    WrittenFile,
    flush,
    name_files,
    paths_of_tensors,
    sha256_of,
    tensor_files,
)
from vtool.training.digests import DigestsByFile, digest_here

ALONE = Ranks()
_FILES = ("progress.safetensors", "state.json")
_NAME = re.compile(r"step-[0-9]+")


Pairs = Iterable[tuple[str, Tensor]]
"""Whole tensors by name."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that a run resumes from, as it is written.

    Tensors are gathered when they are asked for, each on its owner: all ranks take what they are
    given at the same time, to the end.
    """

    step: int
    model: Callable[[Owner], Pairs]
    optimizer: Callable[[Owner], Pairs]
    visits: Tensor
    """Visits of each kept row so far: int64 [rows]."""
    state: dict[str, Any]
    """Counters, as JSON."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The state that a run resumes from, as it was read."""

    step: int
    model: SavedTensors
    optimizer: SavedTensors
    visits: Tensor
    state: dict[str, Any]


def checkpoint_name(step: int) -> str:
    """Return the folder's name of a step's checkpoint."""
    return f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, from its folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def save(
    folder: Path,
    snapshot: Snapshot,
    keep_last: int,
    synced: Path | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint under `folder`, then remove all but the best and the newest `keep_last`.

    Every rank calls it, and writes its share of the tensors; rank 0 the rest, and the name.

    Args:
        synced: a file whose bytes must be on the disk before the checkpoint is there.

    Raises:
        Findings: `checkpoint-not-saved`, on every rank; what was there before is untouched.
    """
    share = tensors_to_write(snapshot, ranks.world)
    return write_share(folder, snapshot, share, keep_last, synced, ranks)


def tensors_to_write(snapshot: Snapshot, world: int) -> dict[str, Pairs]:
    """Return the tensors of each kind that this rank writes, to be taken in order of the kinds."""
    shares = Shares(world)
    return {kind: getattr(snapshot, kind)(shares) for kind in TENSOR_KINDS}


def write_share(
    folder: Path,
    snapshot: Snapshot,
    share: Mapping[str, Pairs],
    keep_last: int,
    synced: Path | None,
    ranks: Ranks,
) -> Path:
    """Write a checkpoint of which each rank has its share: see `save`."""
    target = folder / checkpoint_name(snapshot.step)
    writing = folder / f".writing-{target.name}"
    ranks.on_rank_zero(lambda: _begin(writing, target))
    writer = ShareWriter(writing, ranks)
    for kind in TENSOR_KINDS:
        writer.write(kind, share[kind])
    gathered = ranks.all_gather_objects((writer.files, writer.error and _why(writer.error, folder)))
    files = [file for written, _ in gathered for file in written]
    failed = [(rank, error) for rank, (_, error) in enumerate(gathered) if error]

    def finish() -> None:
        if failed:
            raise _not_saved(writing, target, failed, ranks.world) from writer.error
        try:
            _finish(writing, target, snapshot, files, synced)
        except (OSError, SafetensorError) as error:
            failed_here = [(0, _why(error, folder))]
            raise _not_saved(writing, target, failed_here, ranks.world) from error
        _remove_older(folder, snapshot, keep_last)

    ranks.on_rank_zero(finish)
    return target


def _begin(writing: Path, target: Path) -> None:
    try:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
    except OSError as error:
        raise _not_saved(writing, target, [(0, _why(error, target.parent))]) from error


def _finish(
    writing: Path,
    target: Path,
    snapshot: Snapshot,
    written: Sequence[WrittenFile],
    synced: Path | None,
) -> None:
    """Name the files of all ranks, write the others and the manifest, and rename the folder."""
    digests: dict[str, Any] = name_files(writing, written)
    save_file({"visits": snapshot.visits}, writing / "progress.safetensors")
    (writing / "state.json").write_text(
        json.dumps({"step": snapshot.step, **snapshot.state}, indent=1)
    )
    share_mode(writing, like="state.json")
    for file in writing.iterdir():
        if file.name not in digests:
            digests[file.name] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
    (writing / MANIFEST).write_text(json.dumps(dict(sorted(digests.items())), indent=1))
    for path in (*writing.iterdir(), writing):
        flush(path)
    if synced is not None and synced.exists():
        flush(synced)
        flush(synced.parent)
    os.rename(writing, target)


def _why(error: Exception, folder: Path) -> str:
    """Return an error with the space that there is, where it was raised: on that rank's node."""
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    return f"{error} ({free / 2**20:.0f} MiB are free there)"


def _not_saved(
    writing: Path, target: Path, failed: Sequence[tuple[int, str]], world: int = 1
) -> Findings:
    """Return the finding of a checkpoint that was not written, after removing what was."""
    shutil.rmtree(writing, ignore_errors=True)
    why = "; ".join(f"rank {rank}: {error}" if world > 1 else error for rank, error in failed)
    message = f"{target} could not be written: {why}"
    help = (
        "each rank writes its share: make room where that rank writes; run.dir must be a folder"
        " that all nodes share"
    )
    several = world > 1 and any(rank for rank, _ in failed)
    return Findings(
        Diagnostic("checkpoint-not-saved", message, help if several else None, parameter="run.dir")
    )


def _remove_older(folder: Path, snapshot: Snapshot, keep_last: int) -> None:
    """Flush the folder's new name, and remove the checkpoints that are not kept."""
    try:
        flush(folder)
    except OSError as error:  # it is there, and whole: only its name might be lost with the power
        target = folder / checkpoint_name(snapshot.step)
        print_warnings([Diagnostic("checkpoint-not-synced", f"{target}: {error.strerror}")])
    best = ((snapshot.state.get("marks") or {}).get("best") or {}).get("step")
    for old in (each for each in checkpoints(folder)[:-keep_last] if step_of(each) != best):
        # What cannot be removed costs space, not the run; and what is half removed is no checkpoint
        # any more.
        try:
            doomed = old.rename(old.with_name(f".removing-{old.name}"))
            shutil.rmtree(doomed)
        except OSError as error:
            message = f"{old} cannot be removed, and takes space: {error.strerror}"
            print_warnings([Diagnostic("checkpoint-not-removed", message)])


def print_warnings(findings: Iterable[Diagnostic]) -> None:
    """Print findings that end nothing."""
    for one in findings:
        print(f"{one.severity}[{one.rule} {one.code}]: {one.message}", file=sys.stderr)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints under a folder, oldest first."""
    return sorted(
        (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=step_of
    )


def find_damage(checkpoint: Path, digests: DigestsByFile = digest_here) -> str | None:
    """Return the damage of a checkpoint's files in words, or None if no byte has changed."""
    try:
        return next(_damages(checkpoint, digests), None)
    except Findings:  # a ValueError too: what keeps a rank from looking is no damage
        raise
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename or MANIFEST).name} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read: {error}"


def _damages(checkpoint: Path, digests: DigestsByFile) -> Iterator[str]:
    if not _NAME.fullmatch(checkpoint.name):
        yield "the name of its folder is not step- and a number"
    # to open a named pipe is to wait without end
    if pipes := sorted(file.name for file in checkpoint.iterdir() if not file.is_file()):
        yield f"{', '.join(pipes)} cannot be read: no file"
    manifest: Mapping[str, Any] = read_small_json(checkpoint / MANIFEST)
    if unnamed := [*_unnamed(manifest)]:
        yield f"{MANIFEST} does not name {', '.join(unnamed)}"
    yield from _damaged_files(checkpoint, manifest, digests)
    try:
        step = read_small_json(checkpoint / "state.json")["step"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"state.json cannot be read: {type(error).__name__} {error}"
    else:
        if step != step_of(checkpoint):
            yield f"its folder is named {checkpoint.name}, and its state is that of step {step}"


def _unnamed(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that a manifest lacks."""
    for kind in TENSOR_KINDS:
        try:
            tensor_files(manifest, kind)
        except LookupError as missing:
            yield str(missing)
    yield from (name for name in _FILES if name not in manifest)


def _damaged_files(
    checkpoint: Path, manifest: Mapping[str, Any], digests: DigestsByFile
) -> Iterator[str]:
    """Yield which files are not those that were written."""
    for name, written in manifest.items():
        if Path(name).name != name:
            yield f"{MANIFEST} names {name!r}, which is not a file next to it"
        if (size := (checkpoint / name).stat().st_size) != written["bytes"]:
            yield f"{name} has {size} bytes; {written['bytes']} were written"
    found = digests([checkpoint / name for name in manifest])
    for name, written in manifest.items():
        if found[checkpoint / name] != written["sha256"]:
            yield f"{name} has other bytes than were written"


def open_checkpoint(checkpoint: Path) -> Saved:
    """Open a checkpoint whose digests have been checked. Its tensors are read when asked for."""
    state = read_small_json(checkpoint / "state.json")
    model, optimizer = (SavedTensors(paths_of_tensors(checkpoint, kind)) for kind in TENSOR_KINDS)
    visits = load_file(checkpoint / "progress.safetensors")["visits"]
    return Saved(state.pop("step"), model, optimizer, visits, state)


def newest(
    folder: Path, digests: DigestsByFile = digest_here
) -> tuple[Path | None, list[Diagnostic]]:
    """Return a folder's newest whole checkpoint, and a finding for each newer damaged one."""
    findings: list[Diagnostic] = []
    for path in reversed(checkpoints(folder)):
        if (problem := find_damage(path, digests)) is None:
            return path, findings
        findings.append(
            Diagnostic("corrupt-checkpoint", f"{path}: {problem}", parameter="checkpoint.resume")
        )
    return None, findings


def passed_over(damaged: Sequence[Diagnostic], more: str = "") -> tuple[Diagnostic, ...]:
    """Return warnings that damaged checkpoints, newer than the one that is used, are passed over.

    Args:
        more: what else is done with them.
    """
    return tuple(
        replace(one, message=f"{one.message}; it is passed over{more}", severity="warning")
        for one in damaged
    )


def best_before(
    checkpoint: Path, digests: DigestsByFile = digest_here
) -> tuple[Path | None, list[Diagnostic]]:
    """Return the best checkpoint of a run, as one of its whole checkpoints names it.

    Returns:
        None where none was kept as the best, or where that one is damaged: with a finding then.
    """
    try:
        state = read_small_json(checkpoint / "state.json")
        step = ((state.get("marks") or {}).get("best") or {}).get("step")
    except (OSError, ValueError, AttributeError):
        return None, []
    if step is None:
        return None, []
    best = checkpoint.with_name(checkpoint_name(step))
    if problem := find_damage(best, digests):
        message = f"{best}, the best by its score: {problem}"
        return None, [Diagnostic("corrupt-checkpoint", message, parameter="checkpoint.keep_best")]
    return best, []
