"""The settings of all formats of rows; `vtool.data.formats` has their readers."""

from typing import Annotated

from pydantic import Field

from vtool.config.schema.formats.digits import DigitsSource
from vtool.config.schema.formats.messages import MessagesSource

Source = Annotated[DigitsSource | MessagesSource, Field(discriminator="format")]
FORMATS = (DigitsSource, MessagesSource)
ENTRY_SETTINGS = frozenset(name for entry in FORMATS for name in entry.model_fields)
"""The names of all settings that an entry of some format has."""

__all__ = ["ENTRY_SETTINGS", "FORMATS", "DigitsSource", "MessagesSource", "Source"]
