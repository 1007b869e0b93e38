"""The settings of format `messages`; `vtool/data/formats/messages.py` reads it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from vtool.config.schema.formats.entry import RowsEntry


class MessagesSource(RowsEntry):
    """A JSON-lines file of chats in the `messages` layout of OpenAI and transformers."""

    format: Literal["messages"]
    """The source of the rows, and their format."""
    path: str = Field(min_length=1)
    """The file. Image paths inside it are relative to its folder."""

    def files(self) -> Mapping[str, str]:
        return {"path": self.path}
