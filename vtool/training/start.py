"""The start of a run: at its first step, or at a checkpoint of its own or of another run."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from vtool.config.schema import Run
from vtool.config.schema.formats import PLACES
from vtool.config.schema.training import OF_ITS_OWN
from vtool.config.settings import all_settings
from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.printable import Lines
from vtool.launchers import is_first
from vtool.training.checkpoint import checkpoints, find_damage, newest, passed_over
from vtool.training.digests import DigestsByFile, digest_here
from vtool.training.own_folder import written_settings
from vtool.training.run_folder import RunFolder, reading
from vtool.training.weights import Weights, find_weights
from vtool.words import first_line

# Settings that may differ from one start of a run to the next: they do not change what is computed,
# but for rounding.
FREE = (
    "launch.",
    "checkpoint.",
    "device.",
    "engine.",
    "run.dir",
    "run.name",
    "data.workers",
    "data.micro_batch_size",
    "data.micro_batch_tokens",
    "model.gradient_checkpointing",
    "profiler.",
    "tracking",
)
# What a split's ledger must have in common for a run to resume: the same rows, of which the same
# ones are used, of the same lengths.
SAME_ROWS = ("rows", "kept", "tokens", "supervised_tokens", "images", "videos", "images_xxh3")

# What a ledger says of its files in addition to that: where they are, and how they are read.
_NOT_COMPARED = {*PLACES, "copied_to", "largest_group"}

_DEFAULTS = {
    setting.name: None if setting.field.is_required() else setting.field.default
    for setting in all_settings()
    if not setting.groups
}


@dataclass(frozen=True, slots=True)
class Start:
    """The checkpoint that a run begins from, if any."""

    checkpoint: Path | None
    finished: bool = False
    warnings: tuple[Diagnostic, ...] = ()
    weights: Weights | None = None
    """The weights of `train.from`, where a run takes its first step with them."""
    extended: Mapping[str, Any] | None = None
    """The settings `train` as they were, where a run continues beyond its planned end."""
    from_nothing: bool = False
    """The folder's run took its first step itself, and not from another run's checkpoint."""

    @property
    def origin(self) -> RunFolder | None:
        """The folder of the run that wrote the checkpoint."""
        return RunFolder(self.checkpoint.parent.parent) if self.checkpoint else None


def find_start(
    folder: RunFolder, run: Run, effective: Mapping[str, Any], digests: DigestsByFile = digest_here
) -> Start:
    """Compare a folder with a run's settings, and return where the run begins.

    `checkpoint.resume` is `auto` (resume from the newest whole checkpoint), `never`, `extend`
    (resume, with a later end than planned), or a run's folder, or a checkpoint in one. A run that
    has checkpoints resumes from them also where `resume` names the run that it once began from:
    the same command, given again after a stop, resumes it. It never skips its own checkpoints for
    those of another run. Stopped before its first checkpoint, it begins where it began, which
    config.yaml says.

    Weights of `train.from` are for a first step alone.

    Raises:
        Findings: `run-folder-taken`, `corrupt-checkpoint`, `no-checkpoint`, `not-a-run`, and those
            of `find_weights`.
    """
    start = _find_start(folder, run, effective, digests)
    if start.checkpoint is not None or start.finished:
        return start
    weights = find_weights(run, digests)
    warnings = start.warnings + (weights.warnings if weights else ())
    return replace(start, weights=weights, warnings=warnings)


def _find_start(
    folder: RunFolder, run: Run, effective: Mapping[str, Any], digests: DigestsByFile
) -> Start:
    resume = run.checkpoint.resume
    named = None if resume in OF_ITS_OWN else Path(resume)
    if not folder.config.exists():
        _check_nothing_is_there(folder)
        return _from(named, run, effective, digests) if named else Start(None)
    written, extended = _begun_settings(folder, run, effective)
    if folder.result.exists():
        _check_result(folder)
        if extended is None:
            return Start(None, finished=True)
    # back to an earlier step of its own
    if named and os.path.realpath(folder.checkpoints) == os.path.realpath(named.parent):
        return _from(named, run, effective, digests)
    found, damaged = newest(folder.checkpoints, digests)
    if found is None and damaged:
        raise Findings(
            replace(finding, help="no checkpoint of this run is whole: begin again, run.name=NAME")
            for finding in damaged
        )
    first_resume = (written.get("checkpoint") or {}).get("resume", "auto")
    if found is None and (named or first_resume not in OF_ITS_OWN):
        return _from(named or Path(first_resume), run, effective, digests)
    if named and os.path.realpath(named) != os.path.realpath(folder.path):
        assert found is not None
        if first_resume != resume:
            message = (
                f"{folder.path} has checkpoints of its own, the newest {found.name};"
                f" checkpoint.resume names {resume}"
            )
            remedy = (
                "leave checkpoint.resume out to resume this run, or begin another: run.name=NAME"
            )
            raise Findings(
                Diagnostic("run-folder-taken", message, help=remedy, parameter="checkpoint.resume")
            )
    return Start(
        found,
        warnings=passed_over(damaged, " and set aside"),
        extended=extended,
        from_nothing=first_resume in OF_ITS_OWN,
    )


def _begun_settings(
    folder: RunFolder, run: Run, effective: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return the settings of the run in a folder, and those of its length where it is extended.

    Raises:
        Findings: `run-folder-taken`, `not-a-run`.
    """
    resume, written, extended = run.checkpoint.resume, _read(folder), None
    if changed := setting_differences(written, effective):
        if resume != "extend" or not only_length(changed):
            raise Findings(folder_taken(folder.path, changed, run))
        extended = written.get("train")
    if resume == "never":
        message = f"{folder.path} holds this run already, and checkpoint.resume is never"
        raise Findings(Diagnostic("run-folder-taken", message, parameter="checkpoint.resume"))
    return written, extended


def check_folder(run: Run, effective: Mapping[str, Any]) -> None:
    """Check that a run can begin or resume in its folder, before its proofs take their time.

    Nothing is written, and no checkpoint is read. The run itself looks again, under its lock; of
    several ranks, the first one speaks for all.

    Raises:
        Findings: those of `RunFolder.lock`, `run-folder-taken`, `not-a-run`.
    """
    if not is_first():
        return
    folder = RunFolder(run.folder)
    folder.look()
    if folder.config.exists():
        _begun_settings(folder, run, effective)
    else:
        _check_nothing_is_there(folder)


def _check_nothing_is_there(folder: RunFolder) -> None:
    """Refuse a folder that has all but the settings of a run.

    Raises:
        Findings: `not-a-run`.
    """
    there = [path.name for path in (folder.result,) if path.exists()]
    there += [f"checkpoints/{path.name}" for path in checkpoints(folder.checkpoints)[-1:]]
    if there:
        message = f"{folder.config} is missing, and there is {' and '.join(there)}"
        help = f"put {folder.config.name} back, or begin another run: run.name=NAME"
        raise Findings(Diagnostic("not-a-run", message, help, "run.dir"), fatal=True)


def _from(source: Path, run: Run, effective: Mapping[str, Any], digests: DigestsByFile) -> Start:
    """Return the start from a checkpoint, or from the newest one in a run's folder.

    That run must have had the same settings.
    """
    setting = "checkpoint.resume"
    found: Path | None = source
    damaged: list[Diagnostic] = []
    if not source.name.startswith("step-"):
        found, damaged = newest(source / "checkpoints", digests)
        none = Diagnostic("no-checkpoint", f"{source} has no checkpoint", parameter=setting)
        if found is None:
            raise Findings(damaged or [none])
    elif problem := find_damage(source, digests):
        message = f"{source}: {problem}"
        raise Findings(Diagnostic("corrupt-checkpoint", message, parameter=setting))
    start = Start(found, warnings=passed_over(damaged))
    origin = start.origin
    assert found is not None
    assert origin is not None
    if missing := [
        file.name for file in (origin.config, origin.data, origin.processor) if not file.exists()
    ]:
        message = (
            f"{origin.path}, where {found.name} is, is not the folder of a run: there is no"
            f" {', '.join(missing)}"
        )
        remedy = (
            "name the folder of a run, or a checkpoint inside one: what its rows and its processor"
            " were is written there"
        )
        raise Findings(Diagnostic("not-a-run", message, help=remedy, parameter="checkpoint.resume"))
    if changed := setting_differences(_read(origin), effective):
        raise Findings(_not_resumed(found, changed, run))
    return start


# What the end of a run prints of result.json, and has always written.
_COUNTS = ("rows", "dropped", "distinct", "samples", "epochs")
_TESTED = ("test_exact_match", "test_samples", "test_nll")


def _check_result(folder: RunFolder) -> None:
    """Refuse a result that is not whole: nothing could be said about the run.

    Raises:
        Findings: `not-a-run`.
    """
    try:
        result = read_small_json(folder.result)
        numbers = {"steps": result.get("steps")}
        numbers |= {f"ledger.{name}": result.get("ledger", {}).get(name) for name in _COUNTS}
        if any(name in result for name in _TESTED):
            numbers |= {name: result.get(name) for name in _TESTED}
        absent = [
            name
            for name, value in numbers.items()
            if not isinstance(value, int | float) or isinstance(value, bool)
        ]
        problem = f"it has no number {', '.join(absent)}" if absent else None
        if problem is None and not isinstance(result["steps"], int):
            problem = "its steps are no whole number"
    except PermissionError as error:  # it may be whole: nobody should remove it
        message = f"{folder.result} cannot be read: {error.strerror}"
        help = "have its permissions changed"
        raise Findings(Diagnostic("not-a-run", message, help, "run.dir"), fatal=True) from error
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
    if problem is not None:
        message = f"{folder.result} is damaged: {problem}"
        command = "rm -r" if folder.result.is_dir() else "rm"
        remedy = f"remove it, and the same command ends the run again: {command} '{folder.result}'"
        raise Findings(
            Diagnostic("not-a-run", message, help=remedy, parameter="run.dir"), fatal=True
        )


def _read(folder: RunFolder) -> Any:
    """Return a run's written settings."""
    with reading(folder.config):
        settings = written_settings(folder.config)
        if not isinstance(settings, dict):
            raise ValueError("it holds no settings")
    return settings


def check_rows(origin: RunFolder, ledgers: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the rows of a resumed run with those that it began with.

    Raises:
        Findings: `data-changed`, naming the files.
    """
    with reading(origin.data):
        before = read_small_json(origin.data)
        changed = [
            split for split in ledgers if _rows(before.get(split, {})) != _rows(ledgers[split])
        ]
    if changed:
        named = "; ".join(
            f"data.{split}: {_describe(before.get(split, {}))} → {_describe(ledgers[split])}"
            for split in changed
        )
        raise Findings(
            Diagnostic(
                "data-changed",
                f"{origin.path} began with other rows. {named}",
                "put the rows back, or train these in a run of their own, run.name=NAME; to begin"
                f" with its weights, add train.from={shlex.quote(str(origin.path))}",
                f"data.{changed[0]}",
            )
        )


def _rows(ledger: Mapping[str, Any]) -> list[Any]:
    """Return an identity of a split's rows that does not depend on where their files are."""
    files = [
        # an older vtool may not have had a setting that has no value
        {
            key: value
            for key, value in file.items()
            if key not in _NOT_COMPARED and value not in (None, [])
        }
        for file in ledger.get("files", [])
    ]
    # a run of an older vtool had no videos to count
    return [files, *(ledger.get(key) or 0 for key in SAME_ROWS)]


def _describe(ledger: Mapping[str, Any]) -> str:
    files = [
        f"{file.get('path', file['format'])} ({file['rows']} rows, {file.get('sha256', '')[:8]})"
        for file in ledger.get("files", [])
    ]
    return ", ".join([*files, f"{ledger.get('kept')} kept", f"{ledger.get('tokens')} tokens"])


def setting_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ between two effective configs, with both values.

    Those of `FREE` are left out. A setting that `before` does not have, written by an older vtool,
    has its default there, which is null for those of a source of rows.
    """
    old, new = _leaves(before), _leaves(now)
    for name, default in _leaves(_DEFAULTS).items():
        if name in new and not any(name == key or name.startswith(f"{key}.") for key in old):
            old[name] = default
    keys = [key for key in sorted(old.keys() | new.keys()) if not key.startswith(FREE)]
    return [
        f"{key}: {json.dumps(old.get(key))} → {json.dumps(new.get(key))}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            # a source of rows is one of a list: what differs is named by itself
            found |= _leaves(
                {str(number): each for number, each in enumerate(value)}, f"{prefix}{key}."
            )
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found


def only_length(changed: Sequence[str]) -> bool:
    """Return whether only the run's end is another, of what `setting_differences` has found."""
    return {change.partition(":")[0] for change in changed} <= {"train.steps", "train.epochs"}


def _is_earlier(changed: Sequence[str]) -> bool:
    """Return whether a run is to end before the steps or epochs that it was begun for."""
    for change in changed:
        before, _, after = change.partition(": ")[2].partition(" → ")
        if "null" not in (before, after) and float(after) < float(before):
            return True
    return False


def folder_taken(path: Path, changed: list[str], run: Run) -> Diagnostic:
    """Return the finding for a folder with a run of other settings, and two ways to continue."""
    new, weights = f"add {new_name(run)}", shlex.quote(str(path))
    trained = bool(checkpoints(RunFolder(path).checkpoints))
    other_model = any(change.startswith("model.path:") for change in changed)
    if trained and not other_model:  # what it would begin with is the model that is left
        new += f", and train.from={weights} to begin with its weights"
    if trained and only_length(changed) and not _is_earlier(changed):
        extend = "to train this run on, to a later end, add checkpoint.resume=extend"
        new = f"{extend}; for a new run {new}"
    return Diagnostic(
        "run-folder-taken",
        Lines.of(f"{path} is a run with other settings:", changed),
        f"{new}; or put the settings back",
        changed[0].partition(":")[0],
    )


def _not_resumed(found: Path, changed: list[str], run: Run) -> Diagnostic:
    weights = shlex.quote(str(found))
    return Diagnostic(
        "run-folder-taken",
        Lines.of(f"{found} is of a run with other settings:", changed),
        "checkpoint.resume resumes with the settings that the run had; to begin with its weights"
        f" and other settings, give train.from={weights} in its place",
        changed[0].partition(":")[0],
    )


def new_name(run: Run) -> str:
    """Return the setting that gives a run a folder in which there is nothing yet."""
    folder = run.folder
    free = next(
        name
        for name in (f"{folder.name}-{number}" for number in count(2))
        if not folder.with_name(name).exists()
    )
    if run.run.dir is not None:
        return f"run.dir={shlex.quote(str(folder.with_name(free)))}"
    return f"run.name={shlex.quote(free)}"
