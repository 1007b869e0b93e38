"""Rows whose layout is found from the first of them, and said; what is not certain is refused."""

from typing import Any

from vtool.data.chats import ChatReader
from vtool.data.row import Row


class Auto:
    """Rows of one file or folder, in the layout that was found."""

    def __init__(self, reader: ChatReader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def name(self, index: int) -> str:
        return self.reader.name(index)

    def row(self, index: int) -> Row:
        return self.reader.row(index)

    def describe(self) -> dict[str, Any]:
        told = self.reader.describe()
        return {**told, "format": "auto", "layout": told["format"]}
