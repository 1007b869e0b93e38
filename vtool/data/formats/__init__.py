"""The formats of rows: each reader in one file, and its settings in `vtool.config.schema.formats`."""

from collections.abc import Callable
from typing import Any

from vtool.data.formats.digits import Digits
from vtool.data.formats.messages import Messages
from vtool.data.row import RowReader

READERS: dict[str, Callable[[Any, str | None], RowReader]] = {
    "digits": lambda entry, _label: Digits(entry.split),
    "messages": lambda entry, label: Messages(entry.path, label),
}
"""By `format`, the function that opens an entry's rows.

It is given the entry and, where two files of a split have one name, what stands for this one in
its rows' names.
"""
