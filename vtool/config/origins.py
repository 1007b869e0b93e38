"""The origin of every value: composed files, later over earlier, then the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from vtool.config.yaml_positions import YamlFile
from vtool.diagnostics import Origin

Key = tuple[str, ...]
"""The keys that lead to a value; the entries of a list are numbered."""
COMMAND_LINE = Origin("command line")


@dataclass(frozen=True, slots=True)
class ValuePosition:
    """The place of a value, and of the key before it."""

    value: Origin
    key: Origin
    holds: str
    """`mapping`, `list` or `value`: what it takes the place of depends on it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One composed file: its settings go below `package`."""

    package: Key
    file: YamlFile


@dataclass(frozen=True, slots=True)
class Origins:
    """The place of every value that is not a default."""

    places: Mapping[Key, ValuePosition]

    def of(self, name: str) -> Origin | None:
        """Return the origin of a dotted setting; None for a default."""
        place = self.places.get(tuple(name.split(".")))
        return place.value if place else None

    def near(self, name: str) -> Origin | None:
        """Return the origin of a setting, or of the key of the nearest group around it."""
        keys = tuple(name.split("."))
        if place := self.places.get(keys):
            return place.value
        return next(
            (
                place.key
                for end in range(len(keys) - 1, 0, -1)
                if (place := self.places.get(keys[:end]))
            ),
            None,
        )


def layered(layers: Sequence[Layer], overrides: Sequence[tuple[Key, object]]) -> Origins:
    """Return the origins that remain when layers, then overrides, are merged over earlier ones.

    They are merged as OmegaConf merges values.
    """
    places: dict[Key, ValuePosition] = {}
    for layer in layers:
        if layer.package:
            root = layer.file.place(layer.file.root)
            _put(places, layer.package, ValuePosition(root, root, "mapping"))
        for keys, place in _in_file(layer.file, layer.file.root, layer.package):
            _put(places, keys, place)
    for keys, value in overrides:
        for end in range(1, len(keys)):
            around = places.get(keys[:end])
            if around is None or around.holds == "value":
                places[keys[:end]] = ValuePosition(COMMAND_LINE, COMMAND_LINE, "mapping")
        for below, holds in _in_value(value, keys):
            _put(places, below, ValuePosition(COMMAND_LINE, COMMAND_LINE, holds))
    return Origins(places)


def _put(places: dict[Key, ValuePosition], keys: Key, place: ValuePosition) -> None:
    before = places.get(keys)
    # Mappings are merged. A list or a value takes the place of all that was there.
    if before and before.holds != "value" and not before.holds == place.holds == "mapping":
        for old in [old for old in places if len(old) > len(keys) and old[: len(keys)] == keys]:
            del places[old]
    places[keys] = place


def _in_file(file: YamlFile, node: yaml.Node, keys: Key) -> Iterator[tuple[Key, ValuePosition]]:
    """Yield the places of the values below a node, groups before what is in them."""
    if isinstance(node, yaml.SequenceNode):
        for number, entry in enumerate(node.value):
            yield from _at(file, entry, entry, (*keys, str(number)))
    elif isinstance(node, yaml.MappingNode):
        merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
        for value in merged:  # `<<: *anchor`: what it brings gives way to the keys next to it
            for mapping in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _in_file(file, mapping, keys)
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and not (
                node is file.root and key.value == "defaults"
            ):
                yield from _at(file, key, value, (*keys, str(key.value)))


def _at(
    file: YamlFile, key: yaml.Node, value: yaml.Node, keys: Key
) -> Iterator[tuple[Key, ValuePosition]]:
    holds = (
        "mapping"
        if isinstance(value, yaml.MappingNode)
        else "list"
        if isinstance(value, yaml.SequenceNode)
        else "value"
    )
    yield keys, ValuePosition(file.place(value), file.place(key), holds)
    yield from _in_file(file, value, keys)


def _in_value(value: object, keys: Key) -> Iterator[tuple[Key, str]]:
    if isinstance(value, Mapping):
        yield keys, "mapping"
        for key, entry in value.items():
            yield from _in_value(entry, (*keys, str(key)))
    elif isinstance(value, list | tuple):
        yield keys, "list"
        for number, entry in enumerate(value):
            yield from _in_value(entry, (*keys, str(number)))
    else:
        yield keys, "value"
