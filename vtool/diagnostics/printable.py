"""Text of others, such as names in files, made safe to print.

A name may hold a line break and `::error::`, which GitHub's log takes for a command, sequences
that move a terminal's cursor, or marks that turn the reading direction of what follows.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_ESCAPED = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Categories of Unicode: controls, halves of characters, separators of lines and paragraphs."""
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Lines(str):
    """A text of several lines that vtool itself has broken; in each, all else is escaped."""

    __slots__ = ()

    @classmethod
    def of(cls, first: str, rest: Iterable[str]) -> "Lines":
        """Return a first line, and below it the others, indented."""
        return cls("\n  ".join([printable(first), *map(printable_line, rest)]))


def printable(text: str) -> str:
    """Return a text with every control character escaped, as `\\n` or `\\x1b`."""
    if isinstance(text, Lines) or text.isprintable():
        return text
    return "".join(map(_escaped, text))


def printable_text(text: str) -> str:
    """Return a text whose lines and tabs stay, and any other control character is escaped."""
    return re.sub(r"[^\n\t]+", lambda piece: printable(str(piece[0])), text)


def printable_line(text: str) -> str:
    """Return a text as a line of its own: a `::` at its beginning is none for GitHub then."""
    safe = printable(text)
    return safe.replace("::", ":\\:", 1) if safe.lstrip().startswith("::") else safe


def printable_all(value: Any) -> Any:
    """Return a document of JSON in which every text, keys too, is printable."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable_all(key): printable_all(item) for key, item in value.items()}
        case list() | tuple():
            return [printable_all(item) for item in value]
    return value


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _ESCAPED and character not in _DIRECTIONS:
        return character
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")
