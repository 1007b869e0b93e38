"""The settings of a run and their origins, read from its `config.yaml`.

The origins are YAML comments (`lr: 0.002  # recipes/digits.yaml:16:7`), which every YAML loader
throws away. The nodes of `yaml.compose` know where in the text they end; the comment is what
follows on that line.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml


@dataclass(frozen=True, slots=True)
class SettingLine:
    """One setting that has no settings below it."""

    key: str
    """Dotted: `optim.lr`."""
    value: str
    """The text of the file: `2.0e-3` stays `2.0e-3`."""
    origin: str
    """A file with line and column, `command line` or `default`; empty where it is not known."""


def read_settings(text: str) -> tuple[SettingLine, ...]:
    """Return the settings of a `config.yaml`, in its order.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return tuple(_leaves(root, "", text.splitlines())) if isinstance(root, yaml.MappingNode) else ()


def _leaves(node: yaml.Node, key: str, lines: list[str]) -> Iterator[SettingLine]:
    # What is written on one line, `[0.9, 0.98]` or `{min_pixels: 784}`, shares one comment and is
    # shown as one value.
    is_flow = (
        isinstance(node, yaml.CollectionNode)
        and node.flow_style
        and node.start_mark.line == node.end_mark.line
    )
    if isinstance(node, yaml.ScalarNode) or is_flow or not node.value:
        yield SettingLine(key, _written(node), _comment(node, lines))
    elif isinstance(node, yaml.SequenceNode):
        if all(isinstance(item, yaml.ScalarNode) for item in node.value):
            origins = dict.fromkeys(
                origin for item in node.value if (origin := _comment(item, lines))
            )
            yield SettingLine(key, f"[{', '.join(map(_written, node.value))}]", ", ".join(origins))
        else:
            for position, item in enumerate(node.value):
                yield from _leaves(item, f"{key}.{position}", lines)
    else:
        for name, child in node.value:
            yield from _leaves(child, f"{key}.{name.value}" if key else str(name.value), lines)


def _written(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value) if node.value or node.style is None else '""'
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(map(_written, node.value))}]"
    return (
        "{" + ", ".join(f"{_written(name)}: {_written(child)}" for name, child in node.value) + "}"
    )


def _comment(node: yaml.Node, lines: list[str]) -> str:
    """Return the comment after a value.

    That of a block text (`|`, `>`) is on the line on which the text begins.
    """
    mark = node.start_mark if getattr(node, "style", None) in ("|", ">") else node.end_mark
    rest = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
    _, separator, comment = rest.partition("#")
    return comment.strip() if separator else ""
