"""The settings of format `swift`; `vtool/data/formats/swift.py` reads it."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from vtool.config.schema.base import PathMark
from vtool.config.schema.formats.entry import RowsEntry


class SwiftSource(RowsEntry):
    """Rows of ms-swift: messages, or a query and its response."""

    format: Literal["swift"]
    """The source of the rows, and their format."""
    path: Annotated[str, PathMark()] = Field(min_length=1)
    """The file, or a folder of files of one kind. Image paths inside are relative to its folder."""
    image_folder: Annotated[str | None, PathMark()] = Field(default=None, min_length=1)
    """The folder that paths of images and videos are relative to, in the place of the file's."""
    ignore: tuple[str, ...] = ()
    """Keys that may be there and are not read. Another that is not known is reported, or refused
    where rows are columns.
    """

    def files(self) -> Mapping[str, str]:
        return {"path": self.path}
