"""Rows whose layout is found from the first of them; what is not certain is refused."""

from typing import Any, ClassVar, Self

from vtool.config.schema.formats import ENTRY_SETTINGS
from vtool.config.schema.formats.auto import AutoSource
from vtool.data.row import Row, RowReader


class Auto:
    """Rows of one file or folder, in the layout that was found."""

    format: ClassVar = "auto"

    def __init__(self, reader: RowReader) -> None:
        self.reader = reader

    @classmethod
    def open(cls, entry: AutoSource, label: str | None, **more: Any) -> Self:
        from vtool.data.detect import detect  # it asks the layouts, this package's list
        from vtool.data.formats import READERS

        found = detect(entry.path)
        return cls(READERS[found.format](found, label, **more))

    def __len__(self) -> int:
        return len(self.reader)

    def name(self, index: int) -> str:
        return self.reader.name(index)

    def row(self, index: int) -> Row:
        return self.reader.row(index)

    def describe(self) -> dict[str, Any]:
        found = self.reader.describe()
        # not the settings that its layout alone has
        own = {
            name: value
            for name, value in found.items()
            if name in AutoSource.model_fields or name not in ENTRY_SETTINGS
        }
        return {**own, "format": "auto", "layout": found["format"]}
