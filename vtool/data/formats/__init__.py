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
READERS: dict[str, Callable[..., RowReader]] = {
    "alpaca": lambda entry, label, **more: Alpaca(entry.path, label, **_common(entry), **more),
    "auto": lambda entry, label, **more: Auto(_detected(entry.path, label, **more)),
    "cauldron": lambda entry, label, **more: Cauldron(
        entry.path, label, texts=entry.texts, **_common(entry), **more
    ),
    "digits": lambda entry, _label, **_more: Digits(entry.split),
    "llama_factory": lambda entry, label, **more: LlamaFactory(
        entry.path, entry.dataset, label, **_common(entry), **more
    ),
    "llava": lambda entry, label, **more: Llava(entry.path, entry.image_folder, label, **more),
    "messages": lambda entry, label, **more: Messages(entry.path, label, **more),
    "swift": lambda entry, label, **more: Swift(entry.path, label, **_common(entry), **more),
    "trl": lambda entry, label, **more: Trl(entry.path, label, **_common(entry), **more),
}
"""The functions that open an entry's rows, by `format`.

Each takes the entry and, where two files of a split have one name, the label that rows' names begin
with; and what else a `ChatReader` takes.
"""


def _common(entry: Any) -> dict[str, Any]:
    return {"image_folder": entry.image_folder, "ignore": entry.ignore}


def _detected(path: str, label: str | None, **more: Any) -> ChatReader:
    from vtool.data.detect import detect  # it asks the layouts above

    found = detect(path)
    reader: Any = READERS[found.format](found, label, **more)
    assert isinstance(reader, ChatReader)
    return reader
