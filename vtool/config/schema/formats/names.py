"""The names of a split's sources, in metrics and reports."""

from collections.abc import Sequence
from pathlib import Path

from vtool.config.schema.formats.entry import RowsEntry


def source_names(entries: Sequence[RowsEntry]) -> tuple[str, ...]:
    """Return a name for each source: its own, or that of its file; none is there twice."""
    names: list[str] = []
    given = {entry.name for entry in entries}
    for entry in entries:
        if (name := entry.name) is None:
            base = plain = _usual(entry)
            number = 1
            while plain in given or plain in names:
                number += 1
                plain = f"{base}-{number}"
            name = plain
        names.append(name)
    return tuple(names)


def _usual(entry: RowsEntry) -> str:
    """Return the name of an entry's data set, its file, or its format."""
    file = next(iter(entry.files().values()), None)
    split = getattr(entry, "split", None)
    name = getattr(entry, "dataset", None) or (Path(file).name if file else None)
    return name or "-".join([entry.format, *([split] if split else [])])
