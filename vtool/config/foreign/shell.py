"""The commands of a shell script, with its own variables put in. Nothing of it is run.

It is read as it would be run without arguments, and without a variable set beforehand: a default
(`${BACKEND:-fsdp}`) is taken, and a branch whose condition is known. What nobody can know, such as
what a command prints, is `UNKNOWN` in a word.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vtool.config.limits import MOST_BYTES
from vtool.config.origins import ValuePosition
from vtool.config.resources import shown_path
from vtool.contents import open_regular
from vtool.diagnostics import Diagnostic, Findings, Origin

UNKNOWN = "\0"
"""Stands in a word for what a variable or a command gives, which nobody has read."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DEFAULT = re.compile(r"([A-Za-z_]\w*)(?:\[[@*]\])?(:?[-=?+])?(.*)", re.S)
_PATTERN = re.compile(r"(?:\s|#[^\n]*\n)*\(?([^()\n]*)\)")
_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_REDIRECTED = re.compile(r"[<>]+[&|]?[ \t]*[^\s;|&()]*|[()]")
_DECLARE = ("export", "local", "readonly", "declare")
_SEPARATORS = "\n;|&"


class Char(NamedTuple):
    """A character of a word, and its place in the script."""

    text: str
    offset: int
    quoted: bool


_Text = list[Char]


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word of a command."""

    text: str
    offset: int


@dataclass(slots=True)
class _Block:
    """An `if`, a `case` or a loop that is open."""

    kind: str
    live: bool | None
    """True where its commands are run; None where nobody knows."""
    done: bool | None = False
    """True where a branch of it was run already."""
    subject: str | None = None
    """The word that `case` looks at; None where nobody knows it."""


@dataclass(slots=True)
class _Script:
    text: str
    at: int = 0
    variables: dict[str, list[_Text]] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)
    ended: str = ""
    """The separator that has ended the last command."""


class ScriptPlaces:
    """The places of a script's words, by line and column."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.starts = [0, *(at + 1 for at, letter in enumerate(text) if letter == "\n")]

    def line(self, offset: int) -> int:
        """Return the line of a place, from 1."""
        return bisect_right(self.starts, offset)

    def of(self, word: ShellWord) -> ValuePosition:
        """Return the place of a word."""
        line = self.line(word.offset)
        return self.at(line, word.offset - self.starts[line - 1] + 1)

    def at(self, line: int, column: int) -> ValuePosition:
        """Return a place; both from 1."""
        place = Origin(self.name, line, column)
        return ValuePosition(place, place, "value")


def read_text(path: Path) -> str:
    """Return the text of a script.

    Raises:
        Findings: `unreadable-file`, fatal.
    """
    try:
        with open_regular(path) as stream:
            return stream.read(MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{shown_path(path)} cannot be read as text"
        raise Findings(Diagnostic("unreadable-file", message), fatal=True) from error


def read_commands(text: str) -> Iterator[list[ShellWord]]:
    """Yield the commands of a script that are run, or may be."""
    script = _Script(text.replace("\r\n", " \n"))
    while script.at < len(script.text):
        words = _command(script)
        is_run = _alive(script) is not False
        if words and not _is_of_structure(script, words) and is_run:
            yield [ShellWord(_text(word), word[0].offset) for word in words]
        if script.ended == ";;" and script.blocks and script.blocks[-1].kind == "case":
            _pattern(script)


def _alive(script: _Script) -> bool | None:
    states = [block.live for block in script.blocks]
    return False if False in states else None if None in states else True


def _text(word: _Text) -> str:
    return "".join(char.text for char in word)


def _command(script: _Script) -> list[_Text]:
    """Read a command to its end; assignments are made, and are no words of it."""
    words: list[_Text] = []
    only_assigned, depends = True, script.ended in ("&&", "||")
    while True:
        _skip_blanks(script)
        here = script.text[script.at : script.at + 1]
        if not here or here in _SEPARATORS:
            two = script.text[script.at : script.at + 2]
            script.ended = two if two in ("&&", "||", ";;") else here
            script.at += max(1, len(script.ended))
            return words
        if here in "()<>":
            _redirected(script)
            continue
        start = _ASSIGNED.match(script.text, script.at)
        if start and only_assigned:
            _assign(script, start, depends=depends)
            continue
        split = _words(script)
        if split and script.text[script.at : script.at + 1] in ("<", ">"):
            split = [] if _text(split[-1]).isdigit() else split  # of `2>`
        words += split
        keyword = _text(split[-1]) if split else ""
        declares = bool(words) and _text(words[0]) in _DECLARE
        only_assigned = declares and keyword.startswith(("-", *_DECLARE))
        if keyword in ("then", "else", "do", "fi", "done", "esac", "{", "}") and len(words) == 1:
            script.ended = "\n"
            return words
        if keyword == "in" and _text(words[0]) == "case":
            return words


def _skip_blanks(script: _Script) -> None:
    text = script.text
    while script.at < len(text):
        if text[script.at] in " \t":
            script.at += 1
        elif text.startswith("\\\n", script.at):
            script.at += 2
        elif text[script.at] == "#" and (script.at == 0 or text[script.at - 1] in " \t\n;"):
            end = text.find("\n", script.at)
            script.at = len(text) if end < 0 else end
        else:
            return


def _redirected(script: _Script) -> None:
    """Pass over a redirection, a subshell's bracket, and what a here-document holds."""
    document = _DOCUMENT.match(script.text, script.at)
    if document:
        end = re.compile(rf"\n[\t ]*{document[2]}[ \t]*(?=\n|$)").search(script.text, script.at)
        script.at = end.end() if end else len(script.text)
    elif found := _REDIRECTED.match(script.text, script.at):
        script.at = found.end()


def _assign(script: _Script, start: re.Match[str], *, depends: bool) -> None:
    name, more = start[1], bool(start[2])
    script.at = start.end()
    if script.text[script.at : script.at + 1] == "(":
        script.at += 1
        value: list[_Text] = []
        while script.at < len(script.text):
            _skip_blanks(script)
            here = script.text[script.at : script.at + 1]
            if here == "\n":
                script.at += 1
            elif here in ("", ")"):
                script.at += 1
                break
            else:
                least = script.at + 1
                value += _words(script)
                script.at = max(script.at, least)
    else:
        pieces = _pieces(script)
        # no word is split where a value is assigned
        value = [[char for piece in pieces for char in piece if char.text]]
    live = None if depends else _alive(script)
    if live is False:
        return
    before = script.variables.get(name, [])
    if live is None and [_text(one) for one in value] != [_text(one) for one in before]:
        value = [[Char(UNKNOWN, start.start(), quoted=False)]]
    script.variables[name] = [*before, *value] if more else value


def _words(script: _Script) -> list[_Text]:
    """Read a word, and split what its variables brought, as a shell does."""
    found: list[_Text] = []
    for piece in _pieces(script):
        part: _Text = []
        for char in piece:
            if char.text.isspace() and not char.quoted:
                if part:
                    found.append(part)
                part = []
            else:
                part.append(char)
        if part:
            found.append(part)
    return found


def _pieces(script: _Script) -> list[_Text]:
    """Read a word; it is several where it holds a list in quotes."""
    pieces: list[_Text] = [[]]
    text, quoted = script.text, False
    while script.at < len(text):
        here = text[script.at]
        if text[script.at : script.at + 2] in ("''", '""') and not quoted:  # a word of no letters
            pieces[-1].append(Char("", script.at, quoted=True))
            script.at += 2
        elif here == '"':
            quoted = not quoted
            script.at += 1
        elif here == "'" and not quoted:
            end = text.find("'", script.at + 1)
            end = len(text) if end < 0 else end
            pieces[-1] += [
                Char(text[place], place, quoted=True) for place in range(script.at + 1, end)
            ]
            script.at = end + 1
        elif here == "\\":
            following = text[script.at + 1 : script.at + 2]
            if following and following != "\n":
                keeps = quoted and following not in '$`"\\'
                if keeps:
                    pieces[-1].append(Char(here, script.at, quoted=True))
                pieces[-1].append(Char(following, script.at + 1, quoted=True))
            script.at += 2
        elif here in "$`":
            several = _expand(script, quoted)
            pieces[-1] += several[0] if several else []
            pieces += [list(one) for one in several[1:]]
        elif not quoted and here in " \t\n;|&()<>":
            break
        else:
            pieces[-1].append(Char(here, script.at, quoted=quoted))
            script.at += 1
    return pieces


def _expand(script: _Script, quoted: bool) -> list[_Text]:
    """Return the text for a variable or a command; it is several words for a list."""
    text, start = script.text, script.at
    following = text[start + 1 : start + 2]
    found = _NAME.match(text, start + 1)
    if text[start] == "`":
        end = text.find("`", start + 1)
        script.at = len(text) if end < 0 else end + 1
    elif following == "(":
        script.at = _closed(text, start + 1, "(", ")")
    elif following == "{" or found:
        script.at = found.end() if found else _closed(text, start + 1, "{", "}")
        inside = found[0] if found else text[start + 2 : script.at - 1]
        return _parameter(script, inside, start, quoted)
    elif following in ("@", "*"):  # no arguments
        script.at = start + 2
        return []
    elif following and following in "0123456789#?$!-":
        script.at = start + 2
    else:
        script.at = start + 1
        return [[Char("$", start, quoted=quoted)]]
    return [[Char(UNKNOWN, start, quoted=True)]]


def _closed(text: str, start: int, opening: str, closing: str) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    return len(text)


def _parameter(script: _Script, inside: str, start: int, quoted: bool) -> list[_Text]:
    """Return the text for `${inside}`."""
    found = _DEFAULT.fullmatch(inside)
    unknown = [[Char(UNKNOWN, start, quoted=True)]]
    if inside in ("@", "*") or found is None or (found[3] and not found[2]):
        return [] if inside in ("@", "*") else unknown
    name, operator, default = found[1], found[2] or "", found[3]
    value = script.variables.get(name)
    is_set = value is not None and (any(value) or not operator.startswith(":"))
    if is_set == operator.endswith("+") and operator.endswith(("-", "=", "+")):
        whole = _default(_Script(default, variables=script.variables))
        at = start + 2 + len(inside) - len(default)
        return [[Char(one.text, at + one.offset, one.quoted or quoted) for one in whole]]
    if operator.endswith("+"):
        return []
    if value is None or not is_set:
        return [[Char("~", start, quoted=quoted)]] if name == "HOME" else unknown
    several = "[@]" in inside
    return [
        [char._replace(quoted=quoted) for char in one] for one in (value if several else value[:1])
    ]


def _default(inner: _Script) -> _Text:
    """Read the text behind `:-`, which may hold blanks."""
    whole: _Text = []
    while inner.at < len(inner.text):
        for piece in _pieces(inner):
            whole += piece
        if inner.at < len(inner.text):  # at what would end a word
            whole.append(Char(inner.text[inner.at], inner.at, quoted=False))
            inner.at += 1
    return whole


def _is_of_structure(script: _Script, words: list[_Text]) -> bool:
    """Open and close branches; return whether the command was of them."""
    first, blocks = _text(words[0]), script.blocks
    rest = [_text(word) for word in words[1:]]
    if first in ("if", "elif"):
        if first == "elif" and blocks and blocks[-1].kind == "if":
            earlier = blocks[-1].done
        else:
            earlier = False
            blocks.append(_Block("if", live=True))
        judged = _condition(rest) if script.ended in ("\n", ";") else None
        blocks[-1].live = _both(None if earlier is None else not earlier, judged)
        blocks[-1].done = _either(earlier, judged)
        return True
    if first == "else" and blocks:
        done = blocks[-1].done
        blocks[-1].live = None if done is None else not done
        return True
    if first == "case":
        subject = rest[0] if rest else ""
        blocks.append(_Block("case", live=False, subject=None if UNKNOWN in subject else subject))
        _pattern(script)
        return True
    if first in ("for", "while", "until", "select"):
        if first == "for" and rest:
            script.variables[rest[0]] = [[Char(UNKNOWN, words[0][0].offset, quoted=True)]]
        blocks.append(_Block("loop", live=None))
        return True
    if first in ("fi", "done", "esac") and blocks:
        blocks.pop()
        return True
    return first in ("then", "do", "fi", "done", "esac", "{", "}")


def _pattern(script: _Script) -> None:
    """Read the pattern of the next branch of a `case`."""
    found = _PATTERN.match(script.text, script.at)
    block = script.blocks[-1]
    if found is None or found[1].strip() == "esac":
        return
    patterns = [one.strip().strip("\"'") for one in found[1].split("|")]
    if block.subject is None or block.done is None:
        judged: bool | None = None
    else:
        judged = block.subject in patterns or "*" in patterns
    block.live = False if block.done else judged
    block.done = _either(block.done, judged)
    script.at = found.end()


def _condition(words: list[str]) -> bool | None:
    """Return whether `[ A = B ]` holds; None for what nobody knows, or another condition."""
    if words and words[0] in ("[", "[[") and words[-1] in ("]", "]]"):
        words = words[1:-1]
        if any(UNKNOWN in word for word in words):
            return None
        if len(words) == 3 and words[1] in ("=", "==", "!="):
            if any(mark in words[2] for mark in "*?["):
                return None
            return (words[0] == words[2]) == (words[1] != "!=")
        if len(words) == 2 and words[0] in ("-n", "-z"):
            return words[0] == "-n"
        if words in (["-n"], ["-z"]):
            return words == ["-z"]
    return None


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    return True if True in (one, other) else None if None in (one, other) else False
