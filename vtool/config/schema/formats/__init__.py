"""The settings of all formats of rows; `vtool.data.formats` has their readers."""

from typing import Annotated

from pydantic import Field

from vtool.config.schema.formats.digits import DigitsSource
from vtool.config.schema.formats.llava import LlavaSource
from vtool.config.schema.formats.messages import MessagesSource

Source = Annotated[DigitsSource | LlavaSource | MessagesSource, Field(discriminator="format")]
FORMATS = (DigitsSource, LlavaSource, MessagesSource)
ENTRY_SETTINGS = frozenset(name for entry in FORMATS for name in entry.model_fields)
"""The names of all settings that an entry of some format has."""

__all__ = ["ENTRY_SETTINGS", "FORMATS", "DigitsSource", "LlavaSource", "MessagesSource", "Source"]
