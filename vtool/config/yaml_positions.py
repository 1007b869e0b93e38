"""YAML files with positions, read strictly: a key that is there twice is refused."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vtool.config.limits import DEEPEST, MOST_BYTES, MOST_DIGITS, MOST_VALUES
from vtool.config.resources import BEGIN_WITH_DEFAULTS, shown_path
from vtool.contents import content_of, open_regular
from vtool.diagnostics import Diagnostic, Findings, Origin

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What settings are made of; a date without a tag is read as text. A tag can ask for more: bytes,
# sets, Python objects.
_KINDS = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("null", "bool", "int", "float", "str", "timestamp", "value", "seq", "map")
}


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file of settings, with the marks that YAML gives each of its nodes."""

    name: str
    """The name in messages."""
    text: str
    root: yaml.MappingNode

    def place(self, node: yaml.Node) -> Origin:
        """Return where a node begins."""
        return _place(self.name, node.start_mark)


_ROWS_IN_YAML = "a list is no recipe; rows are read as JSON, JSON lines, Parquet, Arrow or tar"


def read_yaml(path: Path) -> YamlFile:
    """Read a file of settings.

    Raises:
        Findings: `unreadable-file`, `bad-yaml`; of keys that are there twice, and of values that no
            setting takes, all.
    """
    name = shown_path(path)
    try:
        with open_regular(path) as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _refused(
                "bad-yaml",
                f"{name} has more than {MOST_BYTES} bytes, which no recipe needs",
                Origin(name),
            )
        if (found := content_of(content)) and found.kind not in ("empty", "text"):
            of_rows = found.kind in ("parquet", "arrow", "tar")
            rename = f"rows are known by their names: rename it to {path.stem}.{found.kind}"
            help = rename if of_rows else found.remedy
            if found.kind in ("picture", "video"):
                asked = f"vtool predict MODEL {shlex.quote(name)} 'What is this?'"
                help = f"give the rows that name it; `{asked}` asks a model about it"
            raise _refused("unreadable-file", f"{name} {found.what}", Origin(name), help)
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        _refuse_depth(text, name)
        root = yaml.compose(text, _LOADER)
    except OSError as error:
        raise _refused(
            "unreadable-file", f"{name} cannot be read: {error.strerror}", Origin(name)
        ) from error
    except UnicodeDecodeError as error:
        raise _refused(
            "unreadable-file",
            f"{name} is not text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
            Origin(name, error.object[: error.start].count(b"\n") + 1),
        ) from error
    except yaml.YAMLError as error:
        raise not_yaml(name, error, text) from error
    if root is None:
        raise _refused("bad-yaml", f"{name} has no settings", Origin(name), BEGIN_WITH_DEFAULTS)
    if not isinstance(root, yaml.MappingNode):
        raise _refused(
            "bad-yaml",
            f"{name} is not a mapping of settings: lines of `key: value`",
            _place(name, root.start_mark),
            _ROWS_IN_YAML if isinstance(root, yaml.SequenceNode) else None,
        )
    try:
        _unfolded(root, {}, name)
        if refusals := tuple(_refusals(root, name)):
            raise Findings(refusals, fatal=True)
    except RecursionError as error:
        raise _too_deep(name) from error
    return YamlFile(name, text, root)


def _refuse_depth(text: str, name: str) -> None:
    """Refuse groups and lists in each other beyond `DEEPEST`, before a tree is made of them.

    libyaml's own recursion ends the process at some 100,000.
    """
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                mark = event.start_mark
                raise _too_deep(name, _place(name, mark) if mark else None)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


# Of what is not closed, or lacks its colon, the parser names the place where it gave up, which may
# be many lines behind the one that is wrong: the beginning is named instead.
_BEGUN = {
    "while parsing a flow sequence": "the list that begins here with [ is not closed with ]",
    "while parsing a flow mapping": "the group that begins here with { is not closed with }",
    "while scanning a quoted scalar": "the quotation mark here is not closed",
    "while scanning a simple key": "there is no colon and space behind this key",
}


def not_yaml(name: str, error: yaml.YAMLError, text: str = "") -> Findings:
    """Return the findings about a text that is not YAML, at the line that is to be changed.

    Args:
        name: the file's.
        error: the parser's.
        text: the file's, where it is known.
    """
    return _needs_quotes(name, error, text) or _not_yaml(name, error, text)


def _not_yaml(name: str, error: yaml.YAMLError, text: str) -> Findings:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        at, lines = error.problem_mark, text.split("\n")
        line = lines[at.line] if at.line < len(lines) else ""
        begun = _BEGUN.get(error.context or "")
        here = line[at.column : at.column + 1]
        if "\t" in line[: _indent(line)] or here == "\t":
            reason = "a tab, where YAML takes spaces alone: put spaces in its place"
            return _refused("bad-yaml", f"{name}: {reason}", _place(name, at))
        begins = error.context_mark
        one_line = begins is not None and begins.line == at.line
        if here == ":" and one_line and any(end in line[at.column :] for end in "]}"):
            reason = "a second colon in one value: put it in quotes, or a comma before the next key"
            return _refused("bad-yaml", f"{name}: {reason}", _place(name, at))
        if begun and begins is not None:
            return _refused("bad-yaml", f"{name}: {begun}", _place(name, begins))
        if cause := _cause_of(error.problem or "", at, lines):
            reason, line_wrong, column = cause
            place = Origin(name, line_wrong + 1, column + 1)
            return _refused("bad-yaml", f"{name}: {reason}", place)
    if isinstance(error, yaml.MarkedYAMLError) and (
        mark := error.problem_mark or error.context_mark
    ):
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        return _refused("bad-yaml", f"{name} is not YAML: {reason}", _place(name, mark))
    reason = str(getattr(error, "reason", None) or error).splitlines()[0]
    return _refused("bad-yaml", f"{name} is not YAML: {reason}", Origin(name))


_REFERENCE = re.compile(
    r"""
    (?P<before>^[^"']*(?:"[^"]*"[^"']*|'[^']*'[^"']*)*?  # no quote is open here
    (?:[:,\[{-]\s+|\[|^\s*))
    (?P<value>(?:[^\s"'\[\]{},:#][^\s"'\[\]{},]*)?
    \$\{(?:[^{}]|\$\{[^{}]*\})*\}[^\s\]},]*)
    """,
    re.VERBOSE,
)
"""The first value of a line with a reference that stands in no quotation marks."""


def _needs_quotes(name: str, error: yaml.YAMLError, text: str) -> Findings | None:
    """Return the finding about a value with a reference that YAML cuts; None: there is none."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return None
    ends, lines = error.problem_mark, text.split("\n")
    begins = error.context_mark or ends
    for number in sorted({begins.line, ends.line}):
        found = _REFERENCE.match(lines[number]) if number < len(lines) else None
        if found is None:
            continue
        column, whole = found.end("before"), begins.line == ends.line
        if (column >= begins.column or whole) if number == begins.line else column <= ends.column:
            value = found["value"]
            reason = f"{value} is cut at its braces or at a blank: put it in quotes"
            help = "write " + (f"'{value}'" if '"' in value else f'"{value}"')
            return _refused(
                "bad-yaml", f"{name}: {reason}", Origin(name, number + 1, column + 1), help
            )
    return None


def _cause_of(problem: str, at: yaml.Mark, lines: list[str]) -> tuple[str, int, int] | None:
    """Return the cause of a parser's problem, with the line and column, from 0, to be changed."""
    line = lines[at.line] if at.line < len(lines) else ""
    here, indent = line[: at.column], _indent(line)
    reason, where = "", (at.line, at.column)
    before = _line_before(lines, at.line)
    above = lines[before].partition("#")[0].rstrip() if before is not None else ""
    lacks_colon = re.match(r"\s*[A-Za-z_]", above) and not re.search(r":(\s|$)", above)
    twice = problem == "mapping values are not allowed in this context"
    if problem == "found character that cannot start any token":
        reason = f"a value cannot begin with {line[at.column : at.column + 1]}: put it in quotes"
    elif problem == "did not find expected key" and here.rstrip().endswith(("'", '"')):
        reason = "text behind the quotation mark that closes the value"
    elif not (twice or problem == "did not find expected key"):
        return None
    elif re.search(r":\s", here):
        reason = "a second colon in one value: put the value in quotes" if twice else ""
    elif lacks_colon and before is not None:
        reason, where = _BEGUN["while scanning a simple key"], (before, _indent(above))
    elif twice and above and indent > _indent(above):
        deeper = "this line is indented deeper than the one above it"
        reason = f"{deeper}, whose value it then belongs to"
    elif twice:
        reason = "a second colon in one value: put the value in quotes"
    elif re.match(r"\s*[\w.-]+:(\s|$)", line) and indent not in {
        len(each) - len(each.lstrip(" -")) for each in lines[: at.line] if each.strip()
    }:
        reason = "this line is indented as no key above it is"
    return (reason, *where) if reason else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _line_before(lines: list[str], number: int) -> int | None:
    """Return the number of the last line before one that has more than a comment."""
    earlier = range(min(number, len(lines)) - 1, -1, -1)
    return next((each for each in earlier if lines[each].partition("#")[0].strip()), None)


def _refusals(node: yaml.Node, name: str) -> Iterator[Diagnostic]:
    if node.tag not in _KINDS:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        yield Diagnostic(
            "bad-yaml",
            f"{name} has a value of the kind `{tag}`, which no setting takes",
            origin=_place(name, node.start_mark),
        )
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MOST_DIGITS:
        yield Diagnostic(
            "bad-yaml",
            f"{name} has an integer of {len(node.value)} characters, which no setting takes",
            origin=_place(name, node.start_mark),
        )
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _refusals(child, name)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:null":
            yield Diagnostic(
                "bad-yaml",
                f"{name} has a key that is not a word",
                origin=_place(name, key.start_mark),
            )
        elif key.value in first:
            yield Diagnostic(
                "bad-yaml",
                (
                    f"{name} has the key `{key.value}` twice; the first is in line"
                    f" {first[key.value].start_mark.line + 1}"
                ),
                "keep one of them",
                origin=_place(name, key.start_mark),
            )
        else:
            first[key.value] = key
        yield from _refusals(value, name)


def _unfolded(node: yaml.Node, seen: dict[int, tuple[int, int]], name: str) -> tuple[int, int]:
    """Return the values in a node, those of an alias each time, and how deep they lie.

    Nine aliases of nine, nine deep, are 400 million.
    """
    if id(node) not in seen:
        seen[id(node)] = 0, 0  # an alias that contains itself is found by walking it
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        children = [
            _unfolded(each, seen, name)
            for entry in inside
            for each in (entry if isinstance(entry, tuple) else (entry,))
        ]
        size = 1 + sum(size for size, _ in children)
        depth = max((depth for _, depth in children), default=0)
        seen[id(node)] = size, depth + isinstance(node, yaml.CollectionNode)
        if size > MOST_VALUES:
            raise _refused(
                "bad-yaml",
                f"{name} has more than {MOST_VALUES} values and keys, those of aliases each time",
                _place(name, node.start_mark),
            )
        if depth >= DEEPEST:
            raise _too_deep(name, _place(name, node.start_mark))
    return seen[id(node)]


def _too_deep(name: str, origin: Origin | None = None) -> Findings:
    return _refused(
        "bad-yaml",
        (
            f"{name} has more than {DEEPEST} groups or lists inside each other, or an alias that"
            " contains itself"
        ),
        origin or Origin(name),
    )


def _refused(rule: str, message: str, origin: Origin, help: str | None = None) -> Findings:
    return Findings(Diagnostic(rule, message, help, origin=origin), fatal=True)


def _place(name: str, mark: Any) -> Origin:
    """Return the origin at a mark of YAML's, which counts from 0."""
    return Origin(name, mark.line + 1, mark.column + 1)
