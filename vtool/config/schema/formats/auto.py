"""The settings of format `auto`; `vtool/data/formats/auto.py` reads it."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from vtool.config.schema.base import PathMark
from vtool.config.schema.formats.entry import RowsEntry


class AutoSource(RowsEntry):
    """A file or folder whose layout is found from its first rows and printed; or it is refused."""

    format: Literal["auto"]
    """The source of the rows, and their format."""
    path: Annotated[str, PathMark()] = Field(min_length=1)
    """The file, or a folder of files of one kind. Image paths inside are relative to its folder."""

    def files(self) -> Mapping[str, str]:
        return {"path": self.path}
