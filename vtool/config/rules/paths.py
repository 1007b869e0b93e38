"""The rule about files and folders that a recipe names."""

import os
from collections.abc import Iterator
from pathlib import Path

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.config.schema.formats.entry import ROWS_SUFFIXES, has_rows_files
from vtool.config.schema.training import OF_ITS_OWN
from vtool.diagnostics import Diagnostic, Origin, Rule
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.families.modeling_file import is_well_formed, split_modeling
from vtool.near_files import near_file, quoted_name

PATH_NOT_FOUND = Rule(
    name="path-not-found",
    code="VT207",
    summary="A file or folder that a setting names is not there, or is the other of the two.",
    why="The run would stop once it gets there, after the model is loaded.",
    bad="'data.train=[{format: messages, path: rows/trian.jsonl}]'",
    good="'data.train=[{format: messages, path: rows/train.jsonl}]'",
    fix=(
        "Check the spelling. A relative path starts at the folder that vtool is run in; in a recipe"
        " one that begins with ./ starts at the recipe's own."
    ),
)


def _missing(
    name: str, given: str, origins: Origins, help: str | None, *, rows: bool = False
) -> Diagnostic:
    path = Path(given)
    what = "is a folder, not a file" if os.path.isdir(path) else _why_missing(path)
    if os.path.isfile(path) and not rows:
        what = "is a file, not a folder"
    if rows and os.path.isdir(path):
        what = f"is a folder without a file of rows ({', '.join(ROWS_SUFFIXES)})"
    written = origins.near(name)
    near_by = None if os.path.exists(path) else near_file(given, folders=True)
    of_a_folder = name in ("model.path", "train.from", "checkpoint.resume")
    if near_by and of_a_folder and not any(map(os.path.isdir, near_by.paths)):
        near_by = None
    if near_by and near_by.differences:
        what += f"; {near_by.there}"
    looked_for = f" (looked for {quoted_name(str(path.absolute()))})"
    return Diagnostic(
        "path-not-found",
        f"{name}: {quoted_name(given)} {what}{'' if path.is_absolute() else looked_for}",
        _at_recipe(path, written) or (near_by.question if near_by else help),
        name,
        written,
    )


def _at_recipe(path: Path, written: Origin | None) -> str | None:
    """Return help for a relative path that would be right from the recipe's own folder."""
    if written is None or written.line is None or path.is_absolute():
        return None
    there = Path(written.file).parent / path
    return f"it is at {there}: in a recipe write ./{path}" if os.path.exists(there) else None


def _why_missing(path: Path) -> str:
    """Return the reason why a file is not found, as the end of a sentence."""
    try:
        os.stat(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        return f"cannot be looked at: {getattr(error, 'strerror', None) or error}"
    return "is not there"


@settings_rule(PATH_NOT_FOUND)
def rows_file(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that every file of rows exists, and that every folder of rows has one."""
    for split, entries in run.data.splits.items():
        for number, entry in enumerate(entries):
            for name, path in entry.files().items():
                if not os.path.isfile(path) and not has_rows_files(path):
                    yield _missing(f"data.{split}.{number}.{name}", path, origins, None, rows=True)


@settings_rule(PATH_NOT_FOUND)
def model_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the model's folder exists."""
    if run.model.path is not None and not os.path.exists(run.model.path):
        yield _missing(
            "model.path",
            run.model.path,
            origins,
            "name a folder that is there, or a model of the hub: ORGANIZATION/NAME",
        )


@settings_rule(PATH_NOT_FOUND)
def run_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the run's folder is no file."""
    if os.path.isfile(run.folder):
        name = "run.dir" if run.run.dir else "run.name"
        yield _missing(name, str(run.folder), origins, "name a new folder: run.dir=FOLDER")


@settings_rule(PATH_NOT_FOUND)
def modeling_file(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the modeling file exists."""
    if run.model.modeling is not None and is_well_formed(run.model.modeling):
        file, _ = split_modeling(run.model.modeling)
        if not os.path.isfile(file):
            yield _missing("model.modeling", str(file), origins, None)


@settings_rule(PATH_NOT_FOUND)
def resume_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the folder that the run resumes from exists."""
    given = run.checkpoint.resume
    if given not in OF_ITS_OWN and not os.path.exists(given):
        yield _missing(
            "checkpoint.resume",
            given,
            origins,
            (
                did_you_mean(near(given, OF_ITS_OWN) or _runs_named(given))
                or "it takes auto, never, extend, or the folder of a run or of a checkpoint"
            ),
        )


def _runs_named(name: str) -> list[str]:
    """Return the folder of the run of this name: commands take the name, settings a path."""
    folder = os.path.join("runs", name)
    return [folder] if os.path.isdir(folder) else []


@settings_rule(PATH_NOT_FOUND)
def folder_of_weights(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the folder of the weights that the run begins with exists."""
    given = run.train.source
    if given is not None and not os.path.isdir(given):
        help = did_you_mean(_runs_named(given))
        help = help or "name the folder of a run, of a checkpoint in one, or of an export"
        yield _missing("train.from", given, origins, help)


@settings_rule(
    Rule(
        name="two-starts",
        code="VT247",
        summary="train.from and checkpoint.resume both name what the run begins from.",
        why=(
            "A run resumes a checkpoint exactly, with its optimizer, schedule and rows: the weights"
            " of the other would be ignored."
        ),
        bad="train.from=models checkpoint.resume=models",
        good="train.from=models",
        fix="Keep train.from for the weights alone, or checkpoint.resume to resume exactly.",
    ),
)
def two_starts(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that train.from and checkpoint.resume do not both name what the run begins from."""
    resume = run.checkpoint.resume
    if run.train.source is not None and resume not in OF_ITS_OWN:
        yield Diagnostic(
            "two-starts",
            f"train.from is {run.train.source}, and checkpoint.resume is {resume}",
            "leave train.from out to resume exactly, or checkpoint.resume for the weights alone",
            "train.from",
            origins.near("train.from"),
        )
