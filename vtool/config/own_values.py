"""Values of a file that its own defaults list overrides, since `_self_` is not the last of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import yaml

from vtool.config.limits import MOST_FINDINGS
from vtool.config.origins import Key, Layer, Origins, ValuePosition, layered
from vtool.diagnostics import Diagnostic

_HELP = "put _self_ at the end of the defaults list, or take the key out of this file"


@dataclass(frozen=True, slots=True)
class ComposedFile:
    """One file of a composition, and the files whose defaults lists have led to it."""

    layer: Layer
    path: str
    """The path of it in Hydra."""
    listed_by: tuple[str, ...]
    """The paths of the files above it."""
    chosen: bool
    """True where a word of a group names it, which the command line may change."""


def lost_values(files: Sequence[ComposedFile], origins: Origins) -> Iterator[Diagnostic]:
    """Yield `own-value-loses` for each setting of a file that the files it lists set otherwise.

    An equal value loses nothing, nor does one that is set again behind both: on the command line,
    or in a file that extends this one.

    Args:
        files: in the order in which they are merged.
        origins: of the values that remain.
    """
    yield from islice(_lost(files, origins), MOST_FINDINGS)


def _lost(files: Sequence[ComposedFile], origins: Origins) -> Iterator[Diagnostic]:
    for number, own in enumerate(files):
        behind = [each for each in files[number + 1 :] if own.path in each.listed_by]
        if not behind:
            continue
        before = layered([own.layer], []).places
        values = _values(own.layer)
        for other in behind:
            after, others = layered([other.layer], []).places, _values(other.layer)
            for keys, place in before.items():
                wins = _winner(keys, after)
                if place.holds == "mapping" or wins is None or _of_list(keys, before):
                    continue
                if origins.places.get(wins) != after[wins] or _equal(
                    values.get(keys), others.get(wins)
                ):
                    continue
                yield _finding(own, other, keys, place, after[wins], values, others.get(wins))


def _winner(keys: Key, after: Mapping[Key, ValuePosition]) -> Key | None:
    """Return the key of a later file that takes the place of a value: its own or one around it."""
    if keys in after:
        return keys
    around = (keys[:end] for end in range(1, len(keys)))
    return next((key for key in around if key in after and after[key].holds != "mapping"), None)


def _of_list(keys: Key, places: Mapping[Key, ValuePosition]) -> bool:
    around = (keys[:end] for end in range(1, len(keys)))
    return any(key in places and places[key].holds == "list" for key in around)


def _finding(
    own: ComposedFile,
    other: ComposedFile,
    keys: Key,
    place: ValuePosition,
    wins: ValuePosition,
    values: Mapping[Key, Any],
    theirs: Any,
) -> Diagnostic:
    name, there = ".".join(keys), wins.value
    where = f"{there.file}:{there.line}" if there.line else there.file
    return Diagnostic(
        "own-value-loses",
        f"`{name}` is {_shown(values.get(keys))} here, and {_shown(theirs)} in {where}, which wins:"
        " it comes behind `_self_` in the defaults list",
        _HELP,
        name,
        place.value,
        _shown(values.get(keys)),
        _shown(theirs),
        # another word for its group may leave the file's own value in force
        severity="warning" if other.chosen else None,
    )


def _values(layer: Layer) -> dict[Key, Any]:
    found: dict[Key, Any] = {}

    def look(node: yaml.Node, keys: Key) -> None:
        found[keys] = _plain(node)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                look(value, (*keys, str(key.value)))

    look(layer.file.root, layer.package)
    return found


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    return node.value


def _equal(one: Any, other: Any) -> bool:
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=0)
    except (TypeError, ValueError):
        return False


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a group"
    text = str(value)
    return text if len(text) <= 60 else text[:60] + "…"
