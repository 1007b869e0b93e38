"""The settings of format `llava`; `vtool/data/formats/llava.py` reads it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from vtool.config.schema.formats.entry import RowsEntry


class LlavaSource(RowsEntry):
    """A file of chats in LLaVA's layout, a JSON array or JSON lines; ShareGPT's with images."""

    format: Literal["llava"]
    """The source of the rows, and their format."""
    path: str = Field(min_length=1)
    """The file. Image paths inside it are relative to its folder."""
    image_folder: str | None = Field(default=None, min_length=1)
    """The folder that paths of images and videos are relative to, in the place of the file's."""

    def files(self) -> Mapping[str, str]:
        return {"path": self.path}
