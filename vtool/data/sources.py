"""The rows of one split, from all of its entries."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from vtool.config.schema import Data, Source
from vtool.data.formats import READERS
from vtool.data.row import Row, RowReader
from vtool.data.urls import UrlCache


class Rows:
    """The rows of one split, numbered through all of its entries."""

    def __init__(
        self,
        entries: Sequence[Source],
        readers: Sequence[RowReader] = (),
        allow_urls: Sequence[str] = (),
    ) -> None:
        """Open the entries of a split.

        Args:
            readers: more of them, which no entry names.
            allow_urls: hosts that images are fetched from.
        """
        urls = UrlCache.of(allow_urls)
        paths = [next(iter(entry.files().values()), None) for entry in entries]
        names = Counter(Path(path).name for path in set(paths) if path)
        # A file goes by its name, unless another one of the split has the same.
        self.readers: list[RowReader] = [
            READERS[entry.format](
                entry, path if path and names[Path(path).name] > 1 else None, urls=urls
            )
            for entry, path in zip(entries, paths, strict=True)
        ]
        self.readers += readers
        self.ends = list(accumulate(map(len, self.readers)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, index: int) -> str:
        reader, within = self._find(index)
        return reader.name(within)

    def row(self, index: int) -> Row:
        """Return row `index`.

        Raises:
            Findings: where it cannot be understood.
        """
        reader, within = self._find(index)
        return reader.row(within)

    def describe(self) -> list[dict[str, Any]]:
        return [reader.describe() for reader in self.readers]

    def _find(self, index: int) -> tuple[RowReader, int]:
        place = bisect_right(self.ends, index)
        return self.readers[place], index - (self.ends[place - 1] if place else 0)


def open_splits(data: Data) -> dict[str, Rows]:
    """Open the rows of every split that has any.

    Raises:
        Findings: where a source cannot be read.
    """
    return {
        split: Rows(entries, allow_urls=data.allow_urls)
        for split, entries in data.splits.items()
        if entries
    }
