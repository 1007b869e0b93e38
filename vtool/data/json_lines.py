"""Rows of a file of JSON, in lines or in an array: found once, and read when they are asked for."""

import json
import os
import shlex
from itertools import islice
from pathlib import Path
from typing import Any

from vtool.contents import open_regular
from vtool.data.containers.columns import read_lists
from vtool.data.containers.files import digest_of_files, not_readable
from vtool.data.containers.json_array import LARGEST_ROW, find_elements, is_array, too_large
from vtool.data.containers.places import Places, find_lines
from vtool.data.row import name_by_number, refuse, shown_value
from vtool.diagnostics import Findings, Origin

_SHOWN = 60
_BEGINS = (b"{", b"[", b'"', b"\xef\xbb\xbf{", b"\xef\xbb\xbf[")


class JsonLines:
    """The JSON objects of a file: one a line, blank lines being none, or the elements of an array.

    A row of an array goes by its number in it, from 1 (`rows.json row 8`), and one of a line by its
    line (`rows.jsonl:8`). A row costs 24 bytes of memory; its text
    is read again each time.
    """

    def __init__(self, path: str, label: str | None = None, first: int | None = None) -> None:
        """Find the rows of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.
            first: find so many rows only, and do not read the others.

        Raises:
            Findings: `path-not-found`; `broken-row`, where an array is not JSON, or rows go over
                several lines.
        """
        self.path = Path(path)
        self.label = label or self.path.name
        self._descriptor: int | None = None
        try:
            with open_regular(self.path) as file:
                if is_array(file):
                    found = islice(find_elements(file, self.path), first)
                    self.places = Places.of(found, by_line=False)
                    self.digest = "" if first else digest_of_files([self.path])
                else:
                    self.places, self.digest = find_lines(file, first)
        except OSError as error:
            raise not_readable(self.path, error) from error
        except Findings:  # they are values' errors too
            raise
        except ValueError as error:
            raise refuse(
                "broken-row", f"{self.path} is no file of rows: {error}", Origin(str(self.path))
            ) from error
        self._check_lines()

    def __len__(self) -> int:
        return len(self.places)

    def name(self, index: int) -> str:
        number = self.places[index].number
        if self.places.by_line:
            return f"{self.label}:{number}"
        return name_by_number(self.label, number)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]

    def text(self, index: int) -> bytes:
        """Return the text of row `index`."""
        place = self.places[index]
        if self._descriptor is None:  # opening a file takes longer than reading a row
            self._descriptor = os.open(self.path, os.O_RDONLY)
        return os.pread(self._descriptor, place.size, place.start).rstrip()

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings.

        It has no line where other rows of an array begin in the same one: the file may have one
        line in all.
        """
        lines, line = self.places.lines, self.places[index].line
        shared = not self.places.by_line and lines[max(0, index - 1) : index + 2].count(line) > 1
        return Origin(str(self.path), None if shared else line)

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as an object.

        Raises:
            Findings: `broken-row`.
        """
        if (size := self.places[index].size) > LARGEST_ROW:
            raise too_large(size, self.name(index), self.origin(index))
        return row_object(self.text(index), self.name(index), self.origin(index))

    def complete(self, made: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row's messages, and what the file has next to them: nothing."""
        return made

    def describe(self) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.digest, "rows": len(self)}

    def _check_lines(self) -> None:
        """Refuse, once and not for each line, other text than JSON, and rows of several lines."""
        with self.path.open("rb") as file:
            first = [
                os.pread(file.fileno(), min(each.size, _SHOWN), each.start).strip()
                for each in map(self.places.__getitem__, range(min(len(self), 3)))
            ]
        if len(first) > 1 and not any(each.startswith(_BEGINS) for each in first):
            begins = shown_value(first[0].removeprefix(b"\xef\xbb\xbf").decode(errors="replace"))
            what, help = "text, and no rows: it", "rows are one JSON object a line"
            if not self.places.by_line:
                what, help = "a list, and not of rows: it", "rows are JSON objects"
            message = f"{self.path} is {what} begins with {begins}"
            raise refuse("broken-row", message, self.origin(0), help=help)
        if len(self.places) < 2 or self.places[0].size > 80 or self.text(0).strip() != b"{":
            return
        out = self.path.with_suffix(".jsonl")
        out = out if out != self.path else self.path.with_name(f"{self.path.stem}-lines.jsonl")
        raise refuse(
            "broken-row",
            f"{self.path} has rows that go over several lines: each row must be in a line of its"
            " own",
            self.origin(0),
            help=f"jq -c . {shlex.quote(str(self.path))} > {shlex.quote(str(out))}",
        )


def row_object(text: bytes, name: str, origin: Origin) -> dict[str, Any]:
    """Return a row's JSON object.

    Raises:
        Findings: `broken-row`, calling the row `name`, with the column where `json` has failed.
    """
    try:
        # Strictly: json itself would let halves of characters pass. Some editors write a mark at
        # the beginning of a file.
        record = _DECODER.decode(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        bad = f"byte {error.start} is {error.object[error.start]:#04x}"
        help = "where it is Windows' encoding: iconv -f WINDOWS-1252 -t UTF-8 FILE > OTHER"
        message = f"{name} is not text in UTF-8: {bad}"
        raise refuse("broken-row", message, origin, help=help) from error
    except (ValueError, RecursionError) as error:
        column = None
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        help = None
        if text.lstrip().startswith((b"{'", b"{ '")):
            help = "it is a dict as Python's str() writes it: write json.dumps(row)"
        if isinstance(error, json.JSONDecodeError):
            # its own words count lines from this one
            column, why = error.colno, f"{error.msg} (column {error.colno})"
        place = Origin(origin.file, origin.line, column)
        raise refuse("broken-row", f"{name} is not JSON: {why}", place, help=help) from error
    if not isinstance(record, dict):
        message = f"{name} is JSON, but no object: {shown_value(record)}"
        raise refuse("broken-row", message, origin)
    read_lists(record, name, origin)
    return record


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; `json` itself would keep the last of a key's values silently."""
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} more than once")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct)
"""`json.loads` makes a decoder for each text where it is given a hook."""
