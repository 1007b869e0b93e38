"""The places of rows in a file of JSON: found without the file being in memory."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

_CHUNK = 2**24
"""Bytes of a file that are in memory at once."""
LARGEST_LINE = 2**32
"""Bytes without an end of a line after which a file is not one of rows."""
_BLANK = np.zeros(256, bool)
_BLANK[list(b" \t\n\r\x0b\x0c")] = True


class RowPlace(NamedTuple):
    """The place of a row in its file."""

    number: int
    """The number that it goes by: its line's, or in an array its own, from 1."""
    line: int
    """The number of its first line, from 1."""
    start: int
    """The offset of its first byte."""
    size: int
    """The number of its bytes."""


@dataclass(frozen=True, slots=True)
class Places(Sequence[RowPlace]):
    """Places in their order, of 24 bytes each."""

    by_line: bool
    """If a row's number is its line's."""
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))

    @classmethod
    def of(cls, places: Iterable[RowPlace], *, by_line: bool) -> Self:
        """Return the places of an iterable, packed."""
        made = cls(by_line)
        for place in places:
            made.lines.append(place.line)
            made.starts.append(place.start)
            made.sizes.append(place.size)
        return made

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> RowPlace: ...
    @overload
    def __getitem__(self, index: slice) -> list[RowPlace]: ...
    def __getitem__(self, index: int | slice) -> RowPlace | list[RowPlace]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        line = self.lines[index]
        number = line if self.by_line else index % len(self) + 1
        return RowPlace(number, line, self.starts[index], self.sizes[index])


def find_lines(file: BinaryIO, first: int | None = None) -> tuple[Places, str]:
    """Return the lines of a file that are not blank, and the file's SHA-256.

    Args:
        first: find so many alone, and return "" in place of the digest of what is not read.

    Raises:
        ValueError: a line has more than `LARGEST_LINE` bytes; what follows is not read.
    """
    digest = hashlib.sha256()
    starts, odd = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
    base, begins, last, lines = 0, True, 0, 1
    while data := file.read(_CHUNK):
        digest.update(data)
        content = np.frombuffer(data, np.uint8)
        after = np.flatnonzero(content == ord("\n")) + 1
        here = after[after < len(data)]
        here = np.concatenate([np.zeros(int(begins), np.int64), here])
        odd.append(here[_BLANK[content[here]]] + base)
        starts.append(after + base)
        begins = bool(len(after)) and int(after[-1]) == len(data)
        if len(after):
            last, lines = base + int(after[-1]), lines + len(after)
        base += len(data)
        if base - last > LARGEST_LINE:
            raise ValueError(f"line {lines:,} has more than {LARGEST_LINE:,} bytes")
        if first is not None and sum(map(len, starts)) - sum(map(len, odd)) > first + 1:
            break
    start = np.concatenate(starts)
    start = start[start < base]
    size = np.diff(start, append=base)
    if first is not None and file.read(1):  # the last line found continues after what was read
        start, size = start[:-1], size[:-1]
    odd_lines = np.searchsorted(start, np.concatenate(odd))
    blank = [
        at
        for at in odd_lines[odd_lines < len(start)].tolist()
        if _is_blank(file, int(start[at]), int(size[at]))
    ]
    there = np.ones(len(start), bool)
    there[blank] = False
    line = np.arange(1, len(start) + 1)
    columns = (_column(column[there][:first]) for column in (line, start, size))
    return Places(True, *columns), "" if first is not None else digest.hexdigest()


def _is_blank(file: BinaryIO, start: int, size: int) -> bool:
    file.seek(start)
    while size > 0 and (part := file.read(min(size, _CHUNK))):
        if part.strip():
            return False
        size -= len(part)
    return True


def _column(values: NDArray[Any]) -> "array[int]":
    column = array("q")
    column.frombytes(values.astype(np.int64).tobytes())
    return column
