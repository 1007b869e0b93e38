"""The recipe of a file or folder of rows that a command is given in the place of a recipe."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtool.config.given_for_recipe import has_model_files
from vtool.config.overrides import as_typed, quoted
from vtool.config.schema.formats.entry import ROWS_SUFFIXES, TABLE_SUFFIXES, has_rows_files
from vtool.config.shipped import recipe_names
from vtool.contents import open_regular, small_file
from vtool.diagnostics import Diagnostic
from vtool.model_folder import MODEL_CONFIG

ROWS_RECIPE, FINETUNE_RECIPE = "rows", "finetune"
"""The recipes of rows: with a tiny model, whose tokenizer is trained on them; with `model.path`."""
_SPLITS = ("train", "validation", "test")
_OTHER_ROWS = ("data.train=", "data={train", "data={ train", "data.train.0.path=")
_SETTING = re.compile(r"[+~]*[a-z_]+(\.\w+)+=")
"""The beginning of a setting, which no name of a recipe has."""
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_LARGEST_RECIPE = 1 << 16


@dataclass(frozen=True, slots=True)
class RowsRecipe:
    """A recipe and overrides that train on a file of rows."""

    recipe: str
    overrides: tuple[str, ...]
    name: str
    """The name of its run."""


def names_rows(subject: str) -> bool:
    """Return whether a command's subject is rows and no recipe: a file by its name, or a folder."""
    # a blank at the end is one of a name that was copied: the finding quotes it
    name = subject.rstrip().lower()
    name = name.removesuffix(next((end for end in _PACKED if name.endswith(end)), ""))
    if name.endswith(ROWS_SUFFIXES + TABLE_SUFFIXES) or _is_json_text(subject):
        return True
    if subject in recipe_names() or not os.path.isdir(subject):
        return False
    # a model's files are JSON too, and so are some of a run's
    names = ("config.yaml", MODEL_CONFIG)
    other = any(os.path.exists(os.path.join(subject, name)) for name in names)
    return not other and not has_model_files(Path(subject)) and has_rows_files(subject)


def _is_json_text(subject: str) -> bool:
    """Return whether a file is a text by its name, or has no extension, and JSON by its begin."""
    if os.path.splitext(subject)[1] not in (".txt", ""):
        return False
    try:
        with open_regular(subject) as file:
            return file.read(64).lstrip().startswith((b"{", b"["))
    except (OSError, ValueError):
        return False


def recipe_of_rows(file: str, overrides: Sequence[str]) -> RowsRecipe:
    """Return the recipe that trains on a file of rows, and its overrides.

    The format of the rows is left to `vtool.data.detect`.
    """
    recipe = FINETUNE_RECIPE if _has_model(overrides) else ROWS_RECIPE
    source = f"data.train=[{{format:auto,path:{quoted(file)}}}]"
    return RowsRecipe(recipe, (source, *overrides), Path(os.path.abspath(file)).stem or recipe)


def small_json(file: str) -> str:
    """Return the text of a small JSON file, which may be another trainer's recipe; or nothing.

    Comments, which editors allow in JSON, are left out.
    """
    with suppress(OSError, ValueError):
        if file.endswith(".json"):
            text = small_file(Path(file), _LARGEST_RECIPE).decode()
            return re.sub(r"(?m)(^|\s)//.*$", "", text)
    return ""


def of_subject(finding: Diagnostic) -> Diagnostic:
    """Return a finding on the absence of a command's subject without the setting it became."""
    name = "data.train.0.path"
    if (finding.rule, finding.parameter) != ("path-not-found", name):
        return finding
    message = finding.message.removeprefix(f"{name}: ")
    return replace(finding, message=message, parameter=None, origin=None)


def spell_out_rows(values: dict[str, Any]) -> None:
    """Replace `data.train: FILE`, `[FILE]` and one source by lists of sources, in place.

    The format of what is a file's name alone is detected.
    """
    data = values.get("data")
    if not isinstance(data, dict):
        return
    for split in _SPLITS:
        given = data.get(split)
        if isinstance(given, dict):  # one source; or by numbers, as overrides name entries
            given = data[split] = [*given.values()] if "0" in given else [given]
        if isinstance(given, str) and given not in ("", "???"):
            data[split] = [_detected(given)]
        elif isinstance(given, list):
            data[split] = [_detected(each) for each in given]


def _detected(path: Any) -> Any:
    if isinstance(path, dict) and "path" in path:
        return {"format": "auto", **path}
    if not isinstance(path, str):
        return path
    return {"format": "auto", "path": path} if path not in ("", "???") else path


def more_rows(recipe: str, overrides: Sequence[str]) -> Iterator[Diagnostic]:
    """Look for files of rows among the overrides: as a recipe, a command takes one alone."""
    files = [each for each in overrides if _is_there(each)]
    of_rows = names_rows(recipe)
    absent = [each for each in overrides if "=" not in each and names_rows(each)]
    absent = [each for each in absent if each not in files]
    if _SETTING.match(recipe) and not os.path.exists(recipe):
        with_model = FINETUNE_RECIPE if _has_model([recipe, *overrides]) else ROWS_RECIPE
        message = f"`{recipe}` is a setting, and stands in the place of the recipe"
        key, _, value = recipe.partition("=")
        has_signs = os.path.lexists(value) and re.search(r"[^\w./~-]", value)
        typed = as_typed(key, value) if has_signs else shlex.quote(recipe)
        help = f"name a recipe before it, as in: vtool train sft {with_model} {typed}"
        help += _or_rows(recipe)
        yield Diagnostic("bad-override", message, help)
        return
    if absent:
        named = [recipe] if of_rows and not os.path.exists(recipe) else []
        files = [f"`{each}`" for each in (*named, *absent)]
        are = "are" if len(files) > 1 else "is"
        message = f"{' and '.join(files)} {are} not there; and a command takes one file of rows"
        yield Diagnostic(
            "bad-override", message, f"check the names; {_several(overrides)} 'data.train=[…]'"
        )
        return
    named = [each for each in overrides if each in recipe_names()]
    if of_rows and named:
        message = f"`{named[0]}` is a recipe, and stands behind the rows"
        help = f"the rows of a recipe are its data.train: {named[0]} {_as_typed([recipe])}"
        yield Diagnostic("bad-override", message, help)
        return
    again = [each for each in overrides if _replaces(recipe, each)]
    if of_rows and again and not files:
        message = f"`{recipe}` and `{again[0]}` both say what is trained on"
        help = f"leave one out; {_several(overrides)} {_as_typed([recipe, 'more.jsonl'])}"
    elif not files:
        return
    elif of_rows:
        files = [recipe, *files]
        message = f"{_listed(files)} are {len(files)} files of rows: a command takes one"
        help = f"{_several(overrides)} {_as_typed(files)}"
    else:
        message = f"{_listed(files)} is not KEY=VALUE, but a file of rows, beside a recipe"
        help = f"the rows of a recipe are its data.train: {recipe} {_as_typed(files)}"
    yield Diagnostic("bad-override", message, help)


def _or_rows(setting: str) -> str:
    """Return how a file of rows is given without a recipe."""
    key, _, value = setting.partition("=")
    return f"; or the rows alone: {value}" if key == "data.train" and names_rows(value) else ""


def _replaces(file: str, override: str) -> bool:
    """Return whether an override has other rows in the place of a file, and not its format alone.

    LLaMA-Factory's format has the path of another file, which names this one.
    """
    of_rows = override.lstrip("+").startswith(_OTHER_ROWS)
    return of_rows and Path(file).name not in override and "llama_factory" not in override


def _several(overrides: Sequence[str]) -> str:
    recipe = FINETUNE_RECIPE if _has_model(overrides) else ROWS_RECIPE
    return f"several files are a list behind a recipe: vtool train sft {recipe}"


def _has_model(overrides: Sequence[str]) -> bool:
    given = [text.lstrip("+") for text in overrides]
    return any(text.startswith("model.path=") for text in given) and "model.path=null" not in given


def _listed(files: Sequence[str]) -> str:
    return ", ".join(f"`{each}`" for each in files)


def _as_typed(files: Sequence[str]) -> str:
    """Return the rows of a recipe as they are typed in a shell."""
    plain = all(re.fullmatch(r"[\w./-]+", each) for each in files)
    listed = ",".join(each if plain else quoted(each) for each in files)
    return f"'data.train=[{listed}]'" if plain else f'"data.train=[{listed}]"'


def _is_there(text: str) -> bool:
    with suppress(OSError, ValueError):
        return names_rows(text) and os.path.exists(text)
    return False
