"""The settings of all formats of rows; `vtool.data.formats` has their readers."""

from typing import Annotated, get_args

from pydantic import Field

from vtool.config.schema.base import PathMark
from vtool.config.schema.formats.alpaca import AlpacaSource
from vtool.config.schema.formats.auto import AutoSource
from vtool.config.schema.formats.cauldron import CauldronSource
from vtool.config.schema.formats.digits import DigitsSource
from vtool.config.schema.formats.llama_factory import LlamaFactorySource
from vtool.config.schema.formats.llava import LlavaSource
from vtool.config.schema.formats.messages import MessagesSource
from vtool.config.schema.formats.swift import SwiftSource
from vtool.config.schema.formats.trl import TrlSource

Source = Annotated[
    DigitsSource
    | LlavaSource
    | MessagesSource
    | AlpacaSource
    | AutoSource
    | CauldronSource
    | LlamaFactorySource
    | SwiftSource
    | TrlSource,
    Field(discriminator="format"),
]
FORMATS: tuple[type[Source], ...] = get_args(get_args(Source)[0])
ENTRY_SETTINGS = frozenset(name for entry in FORMATS for name in entry.model_fields)
"""The names of all settings that an entry of some format has."""
PLACES = frozenset(
    name
    for entry in FORMATS
    for name, field in entry.model_fields.items()
    if PathMark() in field.metadata
)
"""The names of those that say where files are."""

__all__ = ["ENTRY_SETTINGS", "FORMATS", "PLACES", "MessagesSource", "Source"]
