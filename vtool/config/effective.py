"""The settings in force as YAML, each line with where its value comes from."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from vtool.config.origins import Key, Origins
from vtool.config.references import Unfollowed
from vtool.diagnostics.printable import printable

GAP = "???"
"""The value of a setting that must be given, as a recipe has it."""
_HEAD = "# The settings in force, each with where it comes from. This file is itself a recipe.\n"
# What no YAML reader takes for anything but text; checked against YAML's own words (yes, null, …)
# besides.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# References have been followed; what still looks like one is text, and stays text when the file is
# read again.
_REFERENCE = re.compile(r"(\\*)\$\{")


def as_yaml(values: Mapping[str, Any], origins: Origins) -> str:
    """Return settings as a recipe, each line with its origin in a comment.

    An origin is `recipes/digits.yaml:17:7`, `command line` or `default`.
    """
    return _HEAD + "".join(f"{line}\n" for line in _mapping(values, (), "", origins))


def _mapping(values: Mapping[str, Any], keys: Key, indent: str, origins: Origins) -> Iterator[str]:
    for key, value in values.items():
        below = (*keys, key)
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _mapping(value, below, f"{indent}  ", origins)
        elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            yield f"{indent}{_scalar(key)}:"
            for number, entry in enumerate(value):
                first, *rest = _mapping(entry, (*below, str(number)), f"{indent}    ", origins)
                yield f"{indent}  - {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{_scalar(key)}: {_flow(value)}  # {_comment(value, below, origins)}"


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return "{}" if isinstance(value, dict) else _scalar(value)


def _scalar(value: Any) -> str:
    if value == GAP:
        return GAP
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    style = None
    if isinstance(value, str):
        style = '"'
        is_text = not isinstance(value, Unfollowed)
        value = _REFERENCE.sub(r"\1\1\\${", value) if is_text else str(value)
    text: str = yaml.safe_dump(value, default_style=style, width=float("inf"), allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    # YAML has the same escapes between quotes: a mark of direction would turn the line around
    return printable(text) if style else text


def _comment(value: Any, keys: Key, origins: Origins) -> str:
    """Return where a value comes from; for a list whose entries were set apart, every place."""
    names = (
        [keys, *((*keys, str(number)) for number in range(len(value)))]
        if isinstance(value, list)
        else [keys]
    )
    found = [place.value for name in names if (place := origins.places.get(name))]
    files = {place.file for place in found}
    return (
        "default"
        if not found
        else (
            str(found[0])
            if len(files) == 1
            else ", ".join(dict.fromkeys(str(place) for place in found))
        )
    )
