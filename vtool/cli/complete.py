"""Words that a shell completes: recipes, settings and their values, rules, runs.

A shell waits for each of them, so what is imported here is Python's own: names and values of
settings and rules are in `configs/completion.json`, which `make goldens` writes from the schema.
Nothing is written, and what goes wrong gives no words.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Any

import typer

Words = list[str | tuple[str, str]]
_LARGEST = 200
"""The most words of a folder's."""


def safely(
    complete: "Callable[[typer.Context, str], Iterable[str | tuple[str, str]]]",
) -> "Callable[[typer.Context, str], Words]":
    """Return a function for `autocompletion` that gives no words where anything goes wrong."""

    @wraps(complete)
    def words(ctx: typer.Context, incomplete: str) -> Words:
        try:
            return list(islice(complete(ctx, incomplete), _LARGEST))
        except Exception:  # a traceback would be printed into the line that is being typed
            return []

    return words


def _known() -> dict[str, Any]:
    from vtool.config.shipped import shipped_folder

    text = (shipped_folder("configs") / "completion.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


@safely
def recipe(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete the name of a recipe, or a YAML file."""
    from vtool.config.shipped import recipe_names

    yield from (name for name in recipe_names() if name.startswith(incomplete))
    yield from _paths(incomplete, lambda entry: entry.name.endswith((".yaml", ".yml")))


@safely
def rows_or_recipe(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete the name of a recipe, or any file or folder."""
    yield from recipe(ctx, incomplete)
    yield from _paths(incomplete, lambda entry: not entry.name.endswith((".yaml", ".yml")))


@safely
def overrides(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete KEY=VALUE."""
    yield from _override(_given(ctx), incomplete)


@safely
def recipes_and_overrides(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete the first word as a recipe, and others as KEY=VALUE."""
    given = _given(ctx)
    if not given:
        yield from recipe(ctx, incomplete)
    else:
        yield from _override(given, incomplete)


@safely
def subjects(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete what `vtool load-check` checks: files, folders, recipes, and its settings."""
    given = _given(ctx)
    yield from rows_or_recipe(ctx, incomplete)
    if given:
        yield from _override(given, incomplete, "load_check")


@safely
def topic(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete what `vtool explain` explains: rules by code and name, recipes, settings."""
    known = _known()
    by_code = incomplete[:2].upper() == "VT"
    for code, name, summary in known["rules"]:
        word = code if by_code else name
        if word.startswith(incomplete.upper() if by_code else incomplete) and incomplete:
            yield (incomplete + word[len(incomplete) :] if by_code else word), summary
    yield from recipe(ctx, incomplete)
    yield from _names(known["load_check"] | known["sft"], incomplete, "")
    if incomplete:
        yield from (word for word in known["foreign"] if word.startswith(incomplete))


@safely
def runs(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete the folder of a run, or its name in runs/."""
    if "/" not in incomplete:
        below = list(_paths("runs/", _is_run))
        yield from below if not incomplete else (path.removeprefix("runs/") for path in below)
    yield from _paths(incomplete, _is_run)


@safely
def runs_and_sweeps(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete what `vtool report` takes: folders of runs, and names below runs/."""
    yield from runs(ctx, incomplete)
    if incomplete and "/" not in incomplete:
        named = [path.removeprefix("runs/") for path in _paths("runs/", _is_run)]
        # a sweep of NAME has its runs in runs/NAME-KEY=VALUE
        yield from dict.fromkeys(
            sweep
            for name in named
            if (sweep := name.partition("=")[0].rpartition("-")[0])
            if "=" in name
        )


@safely
def metrics(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Complete the name of a metric of `vtool evaluate`."""
    known = _known()["metrics"]
    yield from ((name, says) for name, says in known if name.startswith(incomplete))


def _given(ctx: typer.Context) -> list[str]:
    """Return the words of arguments before the one that is completed."""
    given: list[str] = []
    for value in ctx.params.values():
        if isinstance(value, str):
            given.append(value)
        elif isinstance(value, list | tuple):
            given += [str(each) for each in value]
    return given


def _override(
    given: Sequence[str], incomplete: str, kind: str = "sft"
) -> Iterator[str | tuple[str, str]]:
    settings = _known()[kind]
    # bash breaks words at "=": the setting is then a word of its own
    before = [word for word in given if word != "="]
    setting = before[-1] if before else ""
    if setting in settings and (given[-1] == "=" or os.environ.get("COMP_WORDS", "").endswith("=")):
        yield from settings[setting][1]
        return
    name, equals, _ = incomplete.partition("=")
    if equals:
        yield from (f"{name}={value}" for value in settings.get(name, ("", []))[1])
        return
    yield from _names(settings, incomplete, "=")


def _names(settings: dict[str, Any], incomplete: str, end: str) -> Iterator[str | tuple[str, str]]:
    """Yield settings, a group as one word with a dot at its end.

    One that is the only one comes with its values: a shell would put a space behind a single word.
    """
    begin = incomplete
    while True:
        found: dict[str, str] = {}
        for name, (what, _) in settings.items():
            if name.startswith(begin):
                head, dot, _ = name[len(begin) :].partition(".")
                word = begin + head + dot
                found.setdefault(word if dot else f"{word}{end}", "" if dot else what)
        (only, *others) = found or [""]
        if others or not only.endswith("."):
            break
        begin = only
    yield from ((word, what) if what else word for word, what in found.items())
    if len(found) == 1 and end and only.endswith(end):
        yield from (f"{only}{value}" for value in settings[only.removesuffix(end)][1])
    if not end and begin.endswith(".") and found:
        yield begin.removesuffix(".")


def _paths(incomplete: str, wanted: "Callable[[os.DirEntry[str]], bool]") -> Iterator[str]:
    """Yield the wanted entries of the folder that a path is in, and its folders."""
    folder, slash, _ = incomplete.rpartition("/")
    begin = folder + slash
    try:
        with os.scandir(os.path.expanduser(begin) or ".") as entries:
            found = sorted(islice(entries, 2000), key=lambda entry: entry.name)
    except OSError:
        return
    folders = []
    for entry in found:
        word = begin + entry.name
        if not word.startswith(incomplete) or entry.name.startswith("."):
            continue
        if wanted(entry):
            yield word
        elif incomplete and entry.is_dir():
            folders.append(f"{word}/")
    yield from folders
    if len(folders) == 1 and folders[0] != incomplete:  # a shell would end a single word
        yield from _paths(folders[0], wanted)


def _is_run(entry: "os.DirEntry[str]") -> bool:
    return any(
        os.path.isfile(os.path.join(entry.path, name)) for name in ("config.yaml", "metrics.jsonl")
    )
