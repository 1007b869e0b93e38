"""The base of the settings of every format of rows."""

from collections.abc import Mapping
from typing import ClassVar

from vtool.config.schema.base import ReadBack, Settings


class RowsEntry(Settings):
    """An entry of `data.train`, `data.validation` or `data.test`."""

    arrival: ClassVar = ReadBack("vtool.training.observe_run:observe_run")

    def files(self) -> Mapping[str, str]:
        """Return the files that the entry names, by the setting that does."""
        return {}
