"""The rows of one split, from all of its entries."""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.config.schema import Data, Source
from vtool.config.schema.formats.names import source_names
from vtool.data.formats import READERS
from vtool.data.permutation import mix
from vtool.data.row import Row, RowReader
from vtool.data.source_changes import changed_sources, marks_of
from vtool.data.urls import UrlCache
from vtool.diagnostics import Diagnostic, Findings


class Rows:
    """The rows of one split, numbered through all of its entries."""

    def __init__(
        self,
        entries: Sequence[Source],
        readers: Sequence[RowReader] = (),
        allow_urls: Sequence[str] = (),
        group: str | None = None,
    ) -> None:
        """Open the entries of a split.

        Args:
            readers: more of them, which no entry names.
            allow_urls: hosts that images are fetched from.
            group: the key of every row that says which group it is in.
        """
        urls = UrlCache.of(allow_urls)
        paths = [next(iter(entry.files().values()), None) for entry in entries]
        self.paths = tuple(path for path in paths if path)
        self.marks = marks_of(self.paths)
        names = Counter(Path(path).name for path in set(self.paths))
        # A file goes by its name, unless another one of the split has the same.
        self.readers: list[RowReader] = [
            READERS[entry.format](
                entry,
                path if path and names[Path(path).name] > 1 else None,
                urls=urls,
                group=group,
            )
            for entry, path in zip(entries, paths, strict=True)
        ]
        self.names = source_names(entries)
        self.limits = tuple(entry.limit for entry in entries)
        self.readers += readers
        self.rescale: Callable[[Row], Row] | None = None
        self.ends = list(accumulate(map(len, self.readers)))

    def replace_readers(self, readers: Sequence[RowReader]) -> None:
        """Take other readers in the place of these, in their order."""
        self.readers = list(readers)
        self.ends = list(accumulate(map(len, self.readers)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, index: int) -> str:
        reader, within = self.find(index)
        return reader.name(within)

    def row(self, index: int) -> Row:
        """Return row `index`.

        Raises:
            Findings: where it cannot be understood.
        """
        reader, within = self.find(index)
        row = reader.row(within)
        return self.rescale(row) if self.rescale else row

    def taken(self) -> Sequence[int]:
        """Return the rows that are within the limit of their source, in order.

        Which they are depends on their numbers in the source alone, so that a higher limit takes
        the same ones and more.
        """
        if all(limit is None for limit in self.limits):
            return range(len(self))
        taken: list[NDArray[np.int64]] = []
        for number, reader in enumerate(self.readers):
            limit = self.limits[number] if number < len(self.limits) else None
            own = np.arange(len(reader))
            if limit is not None and limit < len(reader):
                own = np.sort(np.argpartition(mix(own.astype(np.uint64)), limit - 1)[:limit])
            taken.append(own + self.ends[number] - len(reader))
        rows = array("q")
        rows.frombytes(np.concatenate(taken).astype(np.int64).tobytes())
        return rows

    @property
    def limited(self) -> tuple[int, ...]:
        """The rows of each source that its limit leaves out."""
        return tuple(
            max(0, len(reader) - limit) if limit is not None else 0
            for reader, limit in zip(self.readers, self.limits, strict=False)
        )

    def sources_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the sources that rows are of."""
        return np.searchsorted(np.array(self.ends, np.int64), indices, side="right")

    def describe(self) -> list[dict[str, Any]]:
        return [reader.describe() for reader in self.readers]

    def changes(self, split: str) -> Iterator[Diagnostic]:
        """Yield the finding for files that have changed since they were opened, if any."""
        yield from changed_sources(split, self.marks, marks_of(self.paths))

    def find(self, index: int) -> tuple[RowReader, int]:
        """Return the reader that has row `index`, and its number there."""
        place = bisect_right(self.ends, index)
        return self.readers[place], index - (self.ends[place - 1] if place else 0)


def open_split(data: Data, split: str) -> Rows:
    """Open the rows of one split; those of `train` are also the ones that `data.split` holds back.

    Raises:
        Findings: where a source cannot be read.
    """
    grouped = split == "train" and data.split.shares
    group = data.split.group if grouped else None
    return Rows(data.splits[split], allow_urls=data.allow_urls, group=group)


def open_splits(data: Data) -> dict[str, Rows]:
    """Open the rows of every split that has any of its own.

    Raises:
        Findings: where a source cannot be read; `path-not-found`, where `data.root` is no folder.
    """
    if data.root is not None and not Path(data.root).is_dir():
        message = f"data.root is {data.root}, and there is no such folder"
        raise Findings(Diagnostic("path-not-found", message, parameter="data.root"), fatal=True)
    return {split: open_split(data, split) for split, entries in data.splits.items() if entries}
