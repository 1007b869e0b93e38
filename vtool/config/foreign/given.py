"""The settings that a file of another trainer gives, by dotted name, with their places."""

from collections.abc import Collection
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from vtool.config.origins import ValuePosition
from vtool.config.recipe_source import NOT_VALUES
from vtool.config.references import resolve_references, value_at
from vtool.config.yaml_positions import YamlFile
from vtool.diagnostics import Diagnostic, Findings, Origin


def read_given(
    file: YamlFile, *, whole: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, ValuePosition]]:
    """Return the settings of a YAML file, references followed, and where each stands.

    Args:
        whole: names of groups that are taken as one value.

    Raises:
        Findings: `bad-yaml`, fatal.
    """
    try:
        values = yaml.load(file.text, get_yaml_loader())  # a SafeLoader
        followed = resolve_references(values)
    except Findings:
        raise
    except (yaml.YAMLError, *NOT_VALUES) as error:
        raise Findings(
            Diagnostic(
                "bad-yaml", f"{file.name}: {str(error).splitlines()[0]}", origin=Origin(file.name)
            ),
            fatal=True,
        ) from error
    given: dict[str, Any] = {}
    places: dict[str, ValuePosition] = {}

    def walk(node: yaml.MappingNode, above: str) -> None:
        for key, value in node.value:
            name = f"{above}.{key.value}" if above else str(key.value)
            if name == "defaults":
                continue
            if isinstance(value, yaml.MappingNode) and value.value and name not in whole:
                walk(value, name)
            else:
                place = tuple(name.split("."))
                # What Hydra would have brought is not known from this file: None.
                given[name] = None if place in followed.unread else value_at(followed.values, place)
                places[name] = ValuePosition(
                    file.place(value),
                    file.place(key),
                    "list" if isinstance(value, yaml.SequenceNode) else "value",
                )

    walk(file.root, "")
    return given, places
