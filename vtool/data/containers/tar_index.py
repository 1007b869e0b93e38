"""The members of a tar, found by their headers alone: each can then be read by its place.

Formats: ustar, the extended headers of POSIX.1-2001 (pax), and GNU's long names and large sizes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vtool.data.containers.files import unreadable_file
from vtool.diagnostics import Findings

_BLOCK = 512
_FILE, _PAX, _PAX_FOR_ALL, _LONG_NAME = b"0\07", b"x", b"g", b"L"
_FOLDER = b"5"
_OTHERS = {b"1": "a hard link", b"2": "a symbolic link", b"S": "a file with holes"}
_MOST_HEADER = 2**20  # bytes of a name or of an extended header
_MOST_FILLING = 2**22
"""Bytes behind a tar's end: usual records have 10,240, those of tapes may have a megabyte."""
_RECORD = re.compile(rb"(\d+) ([^=]+)=")


class TarMember(NamedTuple):
    """A file in a tar."""

    name: str
    start: int
    size: int


def find_members(file: BinaryIO, path: Path) -> Iterator[TarMember]:
    """Yield every file of a tar, in its order.

    Raises:
        Findings: `broken-row`, where it is cut off or damaged, or has what is no file or folder.
    """
    whole = file.seek(0, 2)
    at = 0
    more: dict[str, str | int] = {}
    while True:
        head = _read(file, at, _BLOCK)
        if len(head) == _BLOCK and not any(head):
            _check_end(file, at, whole, path)
            return
        if len(head) < _BLOCK:
            what = "ends without the mark of a tar's end: it is cut off"
            raise unreadable_file(path, what, "copy it again")
        if not _sums_up(head):
            raise unreadable_file(
                path, f"is damaged at byte {at:,}: there is no header of a member"
            )
        kind, size = head[156:157], _number(head[124:136])
        if size is None or (size := int(more.get("size", size))) < 0:
            raise unreadable_file(path, f"is damaged at byte {at:,}: a member has no size")
        name = str(more.get("path") or _name(head))
        start = at + _BLOCK
        if start + size > whole:
            what = f"is cut off within {name}: of its {size:,} bytes {whole - start:,} are there"
            raise unreadable_file(path, what, "copy it again")
        at = start + (size + _BLOCK - 1) // _BLOCK * _BLOCK
        if kind in (_PAX, _LONG_NAME):
            if size > _MOST_HEADER:
                raise unreadable_file(
                    path, f"has a header of {size:,} bytes; {_MOST_HEADER:,} are read"
                )
            more |= _extended(kind, _read(file, start, size), path)
            continue
        if kind != b"" and kind in _FILE:
            yield TarMember(name, start, size)
        elif kind not in (_FOLDER, _PAX_FOR_ALL):
            what = _OTHERS.get(kind, f"a member of type {kind!r}")
            raise unreadable_file(path, f"has {what}, {name}: rows and pictures are files in it")
        more = {}


def _check_end(file: BinaryIO, at: int, whole: int, path: Path) -> None:
    """Check that there is nothing but filling behind a tar's end."""
    if whole - at > _MOST_FILLING:
        what = f"has {whole - at:,} bytes behind its end; {_MOST_FILLING:,} may fill it up"
        raise unreadable_file(path, what)
    if any(_read(file, at, whole - at)):
        help = "write the rows of tars that were put together into one: tar --concatenate"
        raise unreadable_file(path, f"has more behind its end, at byte {at:,}", help)


def _read(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _sums_up(head: bytes) -> bool:
    """Check the sum of a header's bytes, its own field counted as blanks."""
    return _number(head[148:156]) == sum(head) - sum(head[148:156]) + 8 * 32


def _number(field: bytes) -> int | None:
    """Return a number in octal digits, or in binary where it needs more; None where it is none."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _name(head: bytes) -> str:
    name = _text(head[:100])
    prefix = _text(head[345:500]) if head[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _extended(kind: bytes, data: bytes, path: Path) -> dict[str, str | int]:
    """Return the name and the size that a header before a member says of it."""
    if kind == _LONG_NAME:
        return {"path": _text(data)}
    found: dict[str, str | int] = {}
    at = 0
    while at < len(data):
        record = _RECORD.match(data, at)
        end = at + int(record[1]) if record and len(record[1]) < 10 else 0
        if record is None or not at < end <= len(data):
            raise _damaged(path)
        key, value = record[2], data[record.end() : end - 1]
        if key.startswith(b"GNU.sparse"):
            raise unreadable_file(
                path, "has a file with holes: rows and pictures are whole files in it"
            )
        if key == b"path":
            found["path"] = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit():
                raise _damaged(path)
            found["size"] = int(value)
        at = end
    return found


def _damaged(path: Path) -> Findings:
    return unreadable_file(path, "is damaged: an extended header cannot be read")
