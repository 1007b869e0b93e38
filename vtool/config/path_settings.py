"""The settings that name a file or a folder to read, and those of them that no rule may look at."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vtool.config.origins import Origins
from vtool.config.partial import without_setting
from vtool.config.resources import allowed_roots, lies_in_one
from vtool.config.schema import Run, Source
from vtool.config.schema.base import NotValid
from vtool.config.schema.training import OF_ITS_OWN
from vtool.diagnostics import Diagnostic
from vtool.families.modeling_file import split_modeling
from vtool.hub.names import hub_name


def without_outside_paths(
    run: Run, origins: Origins, recipe: Path
) -> tuple[Run, tuple[Diagnostic, ...]]:
    """Return a run without the paths that lead out of the folders it may use, and a note of each.

    Rules that read such a path do not run, so nothing there is opened, listed or named.
    """
    roots, notes = allowed_roots(recipe), []
    for name, path in list(_paths(run)):
        if name == "model.path" and hub_name(str(path)):
            message = f"`{name}` may name a model of a hub: no cache is looked at (--untrusted)"
            help = "nothing need be done; the model is not checked"
            notes.append(Diagnostic("not-looked-at", message, help, name, origins.near(name)))
            run = without_setting(run, name)  # type: ignore[assignment]
        elif not lies_in_one(path, roots) or _links_out(path, roots):
            message = (
                f"`{name}` leads out of the recipe's folder, and is not looked at (--untrusted)"
            )
            help = "nothing need be done; what is there is not checked"
            notes.append(Diagnostic("not-looked-at", message, help, name, origins.near(name)))
            run = without_setting(run, name)  # type: ignore[assignment]
    return run, tuple(notes)


def without_impossible_paths(run: Run, origins: Origins) -> tuple[Run, tuple[Diagnostic, ...]]:
    """Return a run without the paths that no file can have, and a finding of each."""
    found = []
    for name, path in [*_paths(run), *_run_folder(run)]:
        problem = None
        if "\0" in str(path):
            problem = "has a character of value 0, which no path has"
        elif (longest := max((len(os.fsencode(part)) for part in path.parts), default=0)) > 255:
            problem = f"has a name of {longest} bytes, and file systems take 255"
        elif len(os.fsencode(path)) > _LONGEST_PATH:
            problem = f"has {len(os.fsencode(path))} bytes, and systems take {_LONGEST_PATH}"
        if problem:
            to_write = name.startswith("run.")
            help = "choose a shorter one" if to_write else "name a file or a folder that is there"
            near = origins.near(name)
            found.append(Diagnostic("path-not-found", f"{name} {problem}", help, name, near))
            run = without_setting(run, name)  # type: ignore[assignment]
    return run, tuple(found)


_LONGEST_PATH = 4_000  # Linux's PATH_MAX is 4,096, with the folder that a relative one starts at


def _links_out(folder: Path, roots: tuple[Path, ...]) -> bool:
    """Return whether a file of a model's folder is a link that leads out."""
    try:
        return any(each.is_symlink() and not lies_in_one(each, roots) for each in folder.iterdir())
    except (OSError, ValueError):
        return False


def _run_folder(run: Run) -> Iterator[tuple[str, Path]]:
    """Yield the setting that decides the run's folder, which is written."""
    with suppress(NotValid):
        if run.run.dir is not None:
            yield "run.dir", Path(run.run.dir)
            return
        yield "run.name", run.folder


def _paths(run: Run) -> Iterator[tuple[str, Path]]:
    """Yield the settings with a valid value that name a file or a folder to read."""
    with suppress(NotValid):
        if run.model.path is not None:
            yield "model.path", Path(run.model.path)
    with suppress(NotValid):
        if run.model.modeling is not None:
            yield "model.modeling", split_modeling(run.model.modeling)[0]
    with suppress(NotValid):
        if run.checkpoint.resume not in OF_ITS_OWN:
            yield "checkpoint.resume", Path(run.checkpoint.resume)
    with suppress(NotValid):
        if run.train.source is not None:
            yield "train.from", Path(run.train.source)
    for split in ("train", "validation", "test"):
        entries: tuple[Source, ...] = ()
        with suppress(NotValid):
            entries = getattr(run.data, split)
        for number, entry in enumerate(entries):
            with suppress(NotValid):
                for name, path in entry.files().items():
                    yield f"data.{split}.{number}.{name}", Path(path)
