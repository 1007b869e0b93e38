"""Elements of a JSON array: each is found without the others being in memory."""

import json
import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from vtool.data.containers.places import RowPlace
from vtool.data.row import refuse
from vtool.diagnostics import Findings, Origin

_CHUNK = 2**20
"""Characters of an array that are read at once."""
LARGEST_ROW = 2**28
"""Bytes of a row that is read: pictures inside it are a thousandth of that."""
_OPENS = re.compile("\ufeff?[ \t\n\r]*\\[[ \t\n\r]*(]?)")
_SEPARATOR = re.compile("[ \t\n\r]*([,\\]])[ \t\n\r]*")
_LONGEST_TOKEN = 16
"""Characters of the longest piece of JSON that is not text, such as a number or an escape.

An error farther from the end of what was read is none of its having been cut off there.
"""


def is_array(file: BinaryIO) -> bool:
    """Check whether a file, which is at its beginning and is put back there, opens an array."""
    found = _OPENS.match(file.read(1024).decode(errors="replace"))
    file.seek(0)
    return found is not None


def find_elements(file: BinaryIO, path: Path) -> Iterator[RowPlace]:
    """Yield the place of each element of an array.

    Each is parsed, and let go: memory has a chunk, or the longest element.

    Raises:
        Findings: `broken-row`, with the line at which the file is no JSON array.
    """
    source, decode = TextIOWrapper(file, "utf-8", newline=""), json.JSONDecoder().raw_decode
    text, at, number, line, start, separator = "", 0, 0, 1, 0, _OPENS
    while True:
        try:
            if not (found := separator.match(text, at)):
                place = len(text) - len(text[at:].lstrip())
                raise json.JSONDecodeError("a comma or the array's end is expected", text, place)
            if found[1] == "]":
                if text[found.end() :].strip() or _follows(source, path):
                    raise json.JSONDecodeError("there is more after the array", text, at)
                return
            _, end = decode(text, found.end())
        except (json.JSONDecodeError, RecursionError) as error:
            more = _read(source, len(text) - at, path) if _may_continue(error, text) else ""
            if more and len(text) - at <= LARGEST_ROW:
                text, at = text[at:] + more, 0
                continue
            raise _no_array(path, number + 1, error, line, text, at) from error
        between, element = text[at : found.end()], text[found.end() : end].encode()
        number, at, separator = number + 1, end, _SEPARATOR
        line, start = line + between.count("\n"), start + len(between.encode())
        yield RowPlace(number, line, start, len(element))
        line, start = line + element.count(b"\n"), start + len(element)


def _may_continue(error: Exception, text: str) -> bool:
    """Return whether what follows in the file may mend an error: the text was cut off there."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return (
        error.msg.startswith("Unterminated string")
        or error.pos >= len(text.rstrip()) - _LONGEST_TOKEN
    )


def _read(source: TextIOWrapper, least: int, path: Path) -> str:
    """Read the next text, as much as there is already, so that a long row is not slow."""
    try:
        return source.read(max(_CHUNK, least))
    except UnicodeDecodeError as error:
        raise _refused(path, str(error), 1) from error


def _follows(source: TextIOWrapper, path: Path) -> bool:
    """Return whether a file has anything but blanks after its array."""
    while more := _read(source, 0, path):
        if more.strip():
            return True
    return False


def too_large(size: int, name: str, origin: Origin) -> Findings:
    """Return the exception for a row that is larger than a row may be."""
    message = f"{name} has {size:,} bytes; rows of {LARGEST_ROW:,} are read"
    return refuse("broken-row", message, origin)


def _no_array(path: Path, row: int, error: Exception, line: int, text: str, at: int) -> Findings:
    if len(text) - at > LARGEST_ROW:
        place, why = at, f"it has more than {LARGEST_ROW:,} characters"
    elif isinstance(error, json.JSONDecodeError):
        place, why = error.pos, error.msg
    else:
        place, why = at, "nested too deeply"
    return _refused(path, f"at row {row}, {why}", line + text.count("\n", at, place))


def _refused(path: Path, why: str, line: int) -> Findings:
    message = f"{path} is not a JSON array: {why}"
    return refuse("broken-row", message, Origin(str(path), line))
