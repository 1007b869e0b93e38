"""Changes of the files that rows are in, during a run."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from vtool.config.schema.formats.entry import is_rows_file
from vtool.data.containers.arrow import STATE, saved_files
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.diagnostics.printable import Lines

SourceMarks = Mapping[str, tuple[int, int]]
"""The bytes of each file, and the nanoseconds at which it was written."""
_LISTED = 3


def marks_of(paths: Iterable[str]) -> SourceMarks:
    """Return the marks of files, and of the files of rows in folders."""
    return {str(file): mark for path in paths for file, mark in _marks(Path(path))}


def _marks(path: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    with suppress(OSError, Findings):  # who reads it says so
        for file in _files(path):
            found = os.stat(file)
            yield file, (found.st_size, found.st_mtime_ns)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / STATE).is_file():  # `datasets` keeps files of its own next to those
        return saved_files(path)
    return sorted(each for each in path.iterdir() if is_rows_file(each))


def changed_sources(split: str, before: SourceMarks, now: SourceMarks) -> Iterator[Diagnostic]:
    """Yield the finding for files that are not as they were when the run began, if any."""
    changes = [
        *(f"{file} is gone" for file in before if file not in now),
        *(f"{file} is new" for file in now if file not in before),
        *(
            f"{file}: {_in_words(before[file][0], now[file][0])}"
            for file in now
            if before.get(file, now[file]) != now[file]
        ),
    ]
    if changes:
        more = len(changes) - _LISTED
        heading = f"data.{split}: what the rows are read from has changed since the run began:"
        listed = [*changes[:_LISTED], *([f"… and {more:,} more"] if more > 0 else [])]
        origin = Origin(next(iter(now), next(iter(before), "")))
        yield Diagnostic(
            "source-changed", Lines.of(heading, listed), parameter=f"data.{split}", origin=origin
        )


def _in_words(before: int, now: int) -> str:
    if before == now:
        return f"written again, with as many bytes ({now:,})"
    return f"{'grown' if now > before else 'shorter'}, from {before:,} bytes to {now:,}"
