"""The readers of all formats of rows; `vtool.config.schema.formats` has their settings."""

from collections.abc import Callable
from typing import Any

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
from vtool.data.row import RowReader

LAYOUTS: tuple[type[ChatReader], ...] = (
    Alpaca,
    Cauldron,
    LlamaFactory,
    Llava,
    Messages,
    Swift,
    Trl,
)
"""The formats that are layouts of chats, whatever file they are in."""
READERS: dict[str, Callable[[Any, str | None], RowReader]] = {
    "alpaca": lambda entry, label: Alpaca(entry.path, label, **_common(entry)),
    "auto": lambda entry, label: Auto(_detected(entry.path, label)),
    "cauldron": lambda entry, label: Cauldron(
        entry.path, label, texts=entry.texts, **_common(entry)
    ),
    "digits": lambda entry, _label: Digits(entry.split),
    "llama_factory": lambda entry, label: LlamaFactory(
        entry.path, entry.dataset, label, **_common(entry)
    ),
    "llava": lambda entry, label: Llava(entry.path, entry.image_folder, label),
    "messages": lambda entry, label: Messages(entry.path, label),
    "swift": lambda entry, label: Swift(entry.path, label, **_common(entry)),
    "trl": lambda entry, label: Trl(entry.path, label, **_common(entry)),
}
"""The functions that open an entry's rows, by `format`.

Each takes the entry and, where two files of a split have one name, the label that rows' names begin
with.
"""


def _common(entry: Any) -> dict[str, Any]:
    return {"image_folder": entry.image_folder, "ignore": entry.ignore}


def _detected(path: str, label: str | None) -> ChatReader:
    from vtool.data.detect import detect  # it asks the layouts above

    found = detect(path)
    reader: Any = READERS[found.format](found, label)
    assert isinstance(reader, ChatReader)
    return reader
