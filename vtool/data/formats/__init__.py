"""The readers of all formats of rows; `vtool.config.schema.formats` has their settings."""

from vtool.data.chats import ChatReader
from vtool.data.formats.alpaca import Alpaca
from vtool.data.formats.auto import Auto
from vtool.data.formats.cauldron import Cauldron
from vtool.data.formats.digits import Digits
from vtool.data.formats.llama_factory import LlamaFactory
from vtool.data.formats.llava import Llava
from vtool.data.formats.messages import Messages
from vtool.data.formats.swift import Swift
from vtool.data.formats.trl import Trl
from vtool.data.row import FormatReader

_FORMATS: tuple[type[FormatReader], ...] = (
    Alpaca,
    Auto,
    Cauldron,
    Digits,
    LlamaFactory,
    Llava,
    Messages,
    Swift,
    Trl,
)
READERS = {each.format: each.open for each in _FORMATS}
"""The functions that open an entry's rows, by `format`."""
LAYOUTS: tuple[type[ChatReader], ...] = tuple(
    each for each in _FORMATS if issubclass(each, ChatReader)
)
"""The formats that are layouts of chats, whatever file they are in."""
