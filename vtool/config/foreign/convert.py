"""A recipe of another trainer's as a recipe of ours, in YAML, with their words next to ours."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.config.foreign.theirs import LEFT_OPEN, ForeignRecipe
from vtool.config.foreign.words import WORDS
from vtool.diagnostics.printable import printable
from vtool.hub.names import hub_name

_OPEN = (
    (
        "model",
        "path",
        "a folder with config.json",
        ("model", "model_name_or_path", "model.path", "base_model"),
    ),
    ("data", "global_batch_size", "rows of a step, over all processes", ()),
    (
        "data",
        "train",
        "a list of rows' files",
        ("dataset", "dataset_name", "datasets", "data.train_files"),
    ),
)
"""The settings that no recipe runs without, and their words: they may name what is not here."""


def as_recipe(reading: ForeignRecipe, title: str) -> str:
    """Return a recipe that means what theirs does; what is left of theirs follows as comments."""
    values = dict(reading.composed.values)
    left = dict(reading.left)
    for group, name, what, words in _OPEN:
        if f"{group}.{name}" not in reading.names:
            inner = dict(values.get(group, {}))
            inner.pop(name, None)
            there = [str(left.pop(word)) for word in words if word in left]
            value: str = _Open("; there ".join([what, *there]))
            if name == "path" and there and hub_name(there[0]):
                value = _OnHub(there[0])
            values[group] = {name: value, **inner}
    if values["data"].get("validation") == LEFT_OPEN:
        values["data"] = values["data"] | {"validation": _open_validation(left, reading)}
    path = reading.composed.file.path
    lines = [f"# From {printable(path.name)}, a recipe of {title}. Their words are on the right."]
    lines += [f"# {note}." for note in reading.notes]
    lines += _lines(values, "", "", reading)
    if left:
        lines += ["", "# Not said here:"]
        lines += [f"# {printable(line)}" for line in map(_left, left.items())]
    return "\n".join(lines) + "\n"


def _open_validation(left: dict[str, Any], reading: ForeignRecipe) -> "_Open":
    """Return the value for rows to evaluate on that are not here, and take their name away."""
    word = reading.names["data.validation"]
    if word == "dataset_test_split":
        split = left.pop(word, "test")
        return _Open(f"a list of rows' files; there the split {split} of the same data set")
    return _Open(f"a list of rows' files; there {left.pop(word, word)}")


class _Open(str):
    """A value that must be given; its text says which."""


class _OnHub(str):
    """The name of a model on a hub, which was not read."""


def _lines(
    values: Mapping[str, Any], above: str, indent: str, reading: ForeignRecipe
) -> Iterator[str]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _lines(value, f"{name}.", f"{indent}  ", reading)
        elif isinstance(value, _Open):
            yield f"{indent}{key}: ???  # {printable(value)}"
        elif isinstance(value, _OnHub):
            yield f"{indent}{key}: {_plain(value)}  # on a hub: its config.json was not read"
        else:
            theirs = printable(reading.names.get(name, ""))
            given = reading.composed.origins.of(name) is not None
            note = f"  # {'' if given else 'default of '}{theirs}" if theirs else ""
            yield f"{indent}{key}: {_plain(value)}{note}"


def _plain(value: Any) -> str:
    """Return a value in YAML, which JSON is a part of."""
    if isinstance(value, str) and value.isidentifier() and value not in ("null", "true", "false"):
        return value
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _left(pair: tuple[str, Any]) -> str:
    name, value = pair
    word = WORDS.get(name)
    parts = [part for part in (word.ours, word.how) if part] if word else []
    why = f"  ({': '.join(parts)})" if parts else ""
    return f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}{why}"
