"""Rows of a JSON-lines file: found once, and read when they are asked for."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vtool.data.row import refuse
from vtool.diagnostics import Findings, Origin

CHUNK_OF_LINE = 2**24
"""Bytes of a line that are in memory at once while rows are found."""
LARGEST_ROW = 2**30
"""Bytes of a row that is read: pictures inside it are a thousandth of that."""


class Place(NamedTuple):
    """The place of a row in its file."""

    number: int
    """The number that it goes by: its line's."""
    line: int
    """The number of its first line, from 1."""
    start: int
    """The offset of its first byte."""
    size: int
    """The number of its bytes."""


class JsonLines:
    """The JSON objects of a file, one a line; blank lines are none.

    A row costs about 200 bytes of memory; its text is read again each time.
    """

    def __init__(self, path: str, label: str | None = None) -> None:
        """Find the rows of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.

        Raises:
            Findings: `path-not-found`.
        """
        self.path = Path(path)
        self.label = label or self.path.name
        try:
            with self.path.open("rb") as file:
                self.digest = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                self.places = list(self.find_rows(file))
        except OSError as error:
            message = f"{self.path.absolute()}: {error.strerror}"
            raise refuse(
                "path-not-found",
                message,
                None,
                parameter="data",
                help="paths are relative to the folder you are in",
            ) from error

    def __len__(self) -> int:
        return len(self.places)

    def name(self, index: int) -> str:
        return f"{self.label}:{self.places[index].number}"

    def find_rows(self, file: BinaryIO) -> Iterator[Place]:
        """Yield the place of each row; the file is at its beginning."""
        start = number = 0
        while part := file.readline(CHUNK_OF_LINE):
            number += 1
            size, blank = len(part), not part.strip()
            while len(part) == CHUNK_OF_LINE and not part.endswith(b"\n"):
                part = file.readline(CHUNK_OF_LINE)
                size, blank = size + len(part), blank and not part.strip()
            if not blank:
                yield Place(number, number, start, size)
            start += size

    def text(self, index: int) -> bytes:
        """Return the text of row `index`."""
        place = self.places[index]
        with self.path.open("rb") as file:
            file.seek(place.start)
            return file.read(place.size).rstrip()

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""
        return Origin(str(self.path), self.places[index].line)

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as an object.

        Raises:
            Findings: `broken-row`.
        """
        if (size := self.places[index].size) > LARGEST_ROW:
            message = f"{self.name(index)} has {size:,} bytes; rows of {LARGEST_ROW:,} are read"
            raise refuse("broken-row", message, self.origin(index))
        try:
            # Strictly: json itself would let halves of characters pass. Some editors write a mark
            # at the beginning of a file.
            text = self.text(index).decode("utf-8-sig")
            record = json.loads(text, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            raise self.broken(self.name(index), self.places[index].line, error) from error
        if not isinstance(record, dict):
            raise refuse(
                "broken-row",
                f"{self.name(index)} is JSON, but no object: {type(record).__name__}",
                self.origin(index),
            )
        return record

    def broken(self, name: str, line: int, error: Exception) -> Findings:
        """Return the exception for text that is not JSON, in a line, where `json` has failed."""
        column = None
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            # its own words count lines from this one
            column, why = error.colno, f"{error.msg} (column {error.colno})"
        message = f"{name} is not JSON: {why}"
        return refuse("broken-row", message, Origin(str(self.path), line, column))

    def describe(self) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.digest, "rows": len(self)}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; `json` itself would keep the last of a key's values silently."""
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} more than once")
    return value
