"""The rows of one split: one source after the other."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from vtool.config.schema import DigitsSource, MessagesSource
from vtool.config.schema import Source as SourceSettings
from vtool.data.digits import Digits
from vtool.data.messages import Messages
from vtool.data.row import Row, Source


def open_source(settings: DigitsSource | MessagesSource, label: str | None = None) -> Source:
    """The rows that an entry of `data.train`, `data.validation` or `data.test` names.

    `label` stands for a file in its rows' names.
    """
    match settings:
        case DigitsSource():
            return Digits(settings.split)
        case MessagesSource():
            return Messages(settings.path, label)


class Rows:
    """The rows of one split, numbered through all of its sources."""

    def __init__(self, settings: Sequence[SourceSettings], sources: Sequence[Source] = ()) -> None:
        """`sources`: more of them, which no setting names."""
        paths = {entry.path for entry in settings if isinstance(entry, MessagesSource)}
        names = Counter(Path(path).name for path in paths)
        # A file goes by its name, unless another one of the split has the same.
        labels = {path: path for path in paths if names[Path(path).name] > 1}
        self.sources = [
            open_source(
                entry, labels.get(entry.path) if isinstance(entry, MessagesSource) else None
            )
            for entry in settings
        ]
        self.sources += sources
        self.ends = list(accumulate(len(source) for source in self.sources))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, index: int) -> str:
        source, within = self._find(index)
        return source.name(within)

    def row(self, index: int) -> Row:
        """Row `index`. Raises `Findings` where it cannot be understood."""
        source, within = self._find(index)
        return source.row(within)

    def ledger(self) -> list[dict[str, Any]]:
        return [source.ledger() for source in self.sources]

    def _find(self, index: int) -> tuple[Source, int]:
        place = bisect_right(self.ends, index)
        return self.sources[place], index - (self.ends[place - 1] if place else 0)
