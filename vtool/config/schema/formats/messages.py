"""The settings of format `messages`; `vtool/data/formats/messages.py` reads it."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from vtool.config.schema.base import PathMark
from vtool.config.schema.formats.entry import RowsEntry


class MessagesSource(RowsEntry):
    """Chats in the layout of OpenAI and transformers, in JSON, Parquet, Arrow or a tar."""

    format: Literal["messages"]
    """The source of the rows, and their format."""
    path: Annotated[str, PathMark()] = Field(min_length=1)
    """The file, or a folder of files of one kind. Image paths inside are relative to its folder."""
    ignore: tuple[str, ...] | None = None
    """Keys that may be there and are not read. Another that is not known is reported, or refused
    where rows are columns.
    """

    def files(self) -> Mapping[str, str]:
        return {"path": self.path}
