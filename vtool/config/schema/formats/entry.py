"""The base of the settings of every format of rows."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from vtool.config.schema.base import ReadBack, Settings


class RowsEntry(Settings):
    """An entry of `data.train`, `data.validation` or `data.test`."""

    arrival: ClassVar = ReadBack("vtool.training.observe_run:observe_run")

    def files(self) -> Mapping[str, str]:
        """Return the files that the entry names, by the setting that does."""
        return {}


ROWS_SUFFIXES = (".json", ".jsonl", ".parquet", ".arrow", ".tar")
"""The ends of names by which a folder's files of rows are known."""


def has_rows_files(folder: str) -> bool:
    """Return whether a folder has a file of rows, by its name, or is one of `save_to_disk`."""
    with suppress(OSError):
        return any(each.suffix in ROWS_SUFFIXES for each in Path(folder).iterdir())
    return False


def rows_bytes(path: str) -> int | None:
    """Return how large a file of rows is, or those of a folder together; None: it is not there."""
    try:
        place = Path(path)
        files = place.iterdir() if place.is_dir() else [place]
        return sum(each.stat().st_size for each in files if each.is_file())
    except OSError:
        return None
