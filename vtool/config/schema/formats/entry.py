"""The base of the settings of every format of rows."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from vtool.config.schema.base import ActsLater, ReadBack, Settings


class RowsEntry(Settings):
    """An entry of `data.train`, `data.validation` or `data.test`."""

    arrival: ClassVar = ReadBack("vtool.training.observe_run:observe_run")
    has_keys: ClassVar = True
    """False for a format whose rows have no keys of their own to be grouped by."""
    format: str
    name: Annotated[str | None, ActsLater()] = Field(default=None, min_length=1)
    """The source's name in metrics and reports. Default: that of its file."""
    weight: Annotated[float | None, ActsLater()] = Field(default=None, gt=0, allow_inf_nan=False)
    """The source's part of `data.train`, relative to the weights of the others.

    The source that is used up first ends the epoch; rows of the others that were not taken come
    first in the next one. Default: all of its rows, once an epoch.
    """
    repeat: Annotated[float | None, ActsLater()] = Field(default=None, gt=0, le=1000)
    """Times that each of its rows is trained on in an epoch: 2.5 is twice or three times.

    Below 1 the rest comes in the next epochs.
    """
    limit: Annotated[int | None, ActsLater()] = Field(default=None, ge=1)
    """The most rows that are taken of it, spread over the source. More of them have the same ones
    among them. Default: all.
    """

    def files(self) -> Mapping[str, str]:
        """Return the files that the entry names, by the setting that does."""
        return {}

    def own_rows(self) -> dict[str, object]:
        """Return the settings that choose its rows, in addition to its files."""
        return {
            name: value
            for name, value in self.model_dump().items()
            if name not in MIXTURE_SETTINGS and name not in self.files()
        }


MIXTURE_SETTINGS = ("name", "weight", "repeat", "limit")
"""Settings of an entry that say how much of its rows is taken, and not which rows there are."""
ROWS_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".tar")
"""The ends of names by which a folder's files of rows are known."""
TABLE_SUFFIXES = (".csv", ".tsv", ".xlsx")
"""The ends of names of tables that people also keep rows in, and that are not read."""


def is_rows_file(path: Path) -> bool:
    """Return whether a name in a folder is one of a file of rows; hidden files are others'."""
    return path.suffix in ROWS_SUFFIXES and not path.name.startswith(".")


def has_rows_files(folder: str) -> bool:
    """Return whether a folder has a file of rows, by its name, or is one of `save_to_disk`."""
    with suppress(OSError):
        return any(is_rows_file(each) for each in Path(folder).iterdir())
    return False


def rows_bytes(path: str) -> int | None:
    """Return how large a file of rows is, or those of a folder together; None: it is not there."""
    try:
        place = Path(path)
        files = place.iterdir() if place.is_dir() else [place]
        return sum(each.stat().st_size for each in files if each.is_file())
    except OSError:
        return None
