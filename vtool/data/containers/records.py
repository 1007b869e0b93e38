"""Open the rows of a path: a file by what is in it, or a folder of files of one kind."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from vtool.config.schema.formats.entry import ROWS_SUFFIXES, is_rows_file
from vtool.data.containers.arrow import SPLITS, STATE, ArrowRows, saved_files
from vtool.data.containers.files import (
    KIND_NAMES,
    Kind,
    check_name,
    digest_of_files,
    file_kind,
    not_readable,
)
from vtool.data.containers.parquet import ParquetRows
from vtool.data.containers.tar import TarRows
from vtool.data.json_lines import JsonLines
from vtool.diagnostics import Diagnostic, Findings, Origin


class Records(Protocol):
    """The rows of one path as JSON objects, by their number. They are pickled into workers."""

    path: Path

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the id of row `index`, without reading it."""

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index`.

        Raises:
            Findings: where it cannot be read.
        """

    def complete(self, made: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row in the layout `messages`, and what the container has next to it."""

    def describe(self) -> dict[str, Any]:
        """Return the path, digest and number of these rows, which identify them."""


def open_records(
    path: str,
    label: str | None = None,
    *,
    whatever_its_name: bool = False,
    first: int | None = None,
) -> Records:
    """Find the rows of a file or a folder.

    Args:
        label: the beginning of its rows' names, in place of the path's own name.
        whatever_its_name: read a file as what it is, where its name says something else.
        first: the rows of each file to look at, where the others are not needed: they may be
            there or not, and what identifies the rows is not.

    Raises:
        Findings: `path-not-found`, `broken-row`, `layout-not-certain`, `extra-not-installed`.
    """
    place = Path(path)
    if not place.is_dir():
        return _of_file(place, file_kind(place), path, label, not whatever_its_name, first)
    if (place / STATE).is_file() or (place / SPLITS).is_file():
        return ArrowRows(saved_files(place), path, label, first)
    files = _files(place)
    kinds = {file_kind(file): file for file in files}
    if len(kinds) > 1:
        (one, ours), (two, theirs), *_ = kinds.items()
        message = (
            f"{place} has {KIND_NAMES[one]} ({ours.name}) and {KIND_NAMES[two]} ({theirs.name})"
        )
        help = "name each as a source of its own"
        raise Findings(Diagnostic("layout-not-certain", message, help, origin=Origin(path)))
    (kind,) = kinds
    for file in files:
        check_name(file, kind)
    if kind == "parquet":
        return ParquetRows(files, path, label, first)
    if kind == "arrow":
        return ArrowRows(files, path, label, first)
    within = [f"{label}/{file.name}" if label else file.name for file in files]
    return JoinedRows(
        place,
        [
            _of_file(file, kind, str(file), name, True, first)
            for file, name in zip(files, within, strict=True)
        ],
        first,
    )


class JoinedRows:
    """The rows of a folder's files, one file after the other by name."""

    def __init__(self, path: Path, parts: Sequence[Records], first: int | None = None) -> None:
        self.path, self.parts = path, tuple(parts)
        self.ends = tuple(accumulate(map(len, parts)))
        self.starts = [end - len(part) for end, part in zip(self.ends, parts, strict=True)]
        """The first row of each file."""
        self.digest = digest_of_files([part.path for part in parts]) if first is None else ""

    def __len__(self) -> int:
        return self.ends[-1]

    def name(self, index: int) -> str:
        part, within = self._find(index)
        return part.name(within)

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""
        part, within = self._find(index)
        return part.origin(within)

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as an object.

        Raises:
            Findings: where it cannot be read.
        """
        part, within = self._find(index)
        return part.record(within)

    def complete(self, made: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row's messages, and what its own file has next to them."""
        part, within = self._find(index)
        return part.complete(made, within)

    def describe(self) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.digest, "rows": len(self)}

    def _find(self, index: int) -> tuple[Records, int]:
        place = bisect_right(self.ends, index)
        return self.parts[place], index - (self.ends[place - 1] if place else 0)


def _of_file(
    place: Path, kind: Kind, path: str, label: str | None, strict: bool, first: int | None
) -> Records:
    if strict:
        check_name(place, kind)
    if kind == "parquet":
        return ParquetRows([place], path, label, first)
    if kind == "arrow":
        return ArrowRows([place], path, label, first)
    return TarRows(path, label, first) if kind == "tar" else JsonLines(path, label, first)


def _files(folder: Path) -> list[Path]:
    """Return a folder's files of rows, by name. Folders in it are not looked into."""
    try:
        found = sorted(each for each in folder.iterdir() if is_rows_file(each))
        # a link that leads to itself, or nowhere, is reported, and not skipped
        files = [each for each in found if not each.is_dir() and each.stat()]
    except OSError as error:
        raise not_readable(Path(error.filename or folder), error) from error
    if not files:
        suffixes = ", ".join(ROWS_SUFFIXES)
        raise not_readable(folder, OSError(0, f"is a folder without a file of rows ({suffixes})"))
    return files
