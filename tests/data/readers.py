"""Helpers for tests of readers: rows of a layout, read from lines, and their findings."""

from pathlib import Path
from typing import Any

import pytest

from tests.rows import write_rows
from vtool.data.detect import entry
from vtool.data.formats import READERS
from vtool.data.row import Row, RowReader
from vtool.diagnostics import Diagnostic, Findings


def open_rows(format: str, path: Path, **settings: Any) -> RowReader:
    """Open a source as a recipe does."""
    return READERS[format](entry(format, path=str(path), **settings), None)


def read(format: str, folder: Path, *rows: Any, **settings: Any) -> list[Row]:
    """The rows that a format makes of JSON lines."""
    reader = open_rows(format, write_rows(folder / "rows.jsonl", rows), **settings)
    return [reader.row(index) for index in range(len(reader))]


def said(row: Row) -> list[tuple[str, Any]]:
    """The roles and contents of a row."""
    return [(message["role"], message["content"]) for message in row.messages]


def refused(format: str, folder: Path, row: Any, **settings: Any) -> Diagnostic:
    """The one finding about the last of two rows, the first of which is good, or of opening it."""
    with pytest.raises(Findings) as caught:
        read(format, folder, row, **settings)
    (finding,) = caught.value.diagnostics
    return finding
