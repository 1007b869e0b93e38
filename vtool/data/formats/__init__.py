"""The readers of all formats of rows; `vtool.config.schema.formats` has their settings."""

from collections.abc import Callable
from typing import Any

from vtool.data.formats.digits import Digits
from vtool.data.formats.llava import Llava
from vtool.data.formats.messages import Messages
from vtool.data.row import RowReader

READERS: dict[str, Callable[[Any, str | None], RowReader]] = {
    "digits": lambda entry, _label: Digits(entry.split),
    "llava": lambda entry, label: Llava(entry.path, entry.image_folder, label),
    "messages": lambda entry, label: Messages(entry.path, label),
}
"""The functions that open an entry's rows, by `format`.

Each takes the entry and, where two files of a split have one name, the label that rows' names begin
with.
"""
