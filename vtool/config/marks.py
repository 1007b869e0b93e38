"""YAML with places: parse a file, and say where each value stands. Refuses what YAML readers let pass: a key twice in one mapping."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from vtool.config.resources import shown
from vtool.diagnostics import Diagnostic, Findings, Origin

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Key = tuple[str, ...]


def read_marks(path: Path) -> dict[Key, Origin]:
    """The place of every value of a YAML file, by its keys; entries of lists by their number.

    Raises:
        Findings: `unreadable-file`, `bad-yaml`.
    """
    name = shown(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Findings(Diagnostic("unreadable-file", f"{name}: {reason}", origin=Origin(name)), fatal=True) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Origin(name, mark.line + 1, mark.column + 1) if mark else Origin(name)
        raise Findings(Diagnostic("bad-yaml", f"{name} is not YAML: {error.problem}", origin=place), fatal=True) from error
    except yaml.YAMLError as error:
        raise Findings(Diagnostic("bad-yaml", f"{name} is not YAML: {error}", origin=Origin(name)), fatal=True) from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise Findings(Diagnostic("bad-yaml", f"{name} is not a mapping of settings", origin=_origin(name, root)), fatal=True)
    return dict(_leaves(root, (), name))


def _leaves(node: yaml.Node, keys: Key, name: str) -> Iterator[tuple[Key, Origin]]:
    if keys:
        yield keys, _origin(name, node)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, yaml.Node] = {}
        for key, value in node.value:
            text = str(key.value)
            if text in seen:
                message = f"{name} has the key `{text}` twice; the first is in line {seen[text].start_mark.line + 1}"
                raise Findings(Diagnostic("bad-yaml", message, origin=_origin(name, key)), fatal=True)
            seen[text] = key
            yield from _leaves(value, (*keys, text), name)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _leaves(value, (*keys, str(number)), name)


def _origin(name: str, node: yaml.Node) -> Origin:
    return Origin(name, node.start_mark.line + 1, node.start_mark.column + 1)
