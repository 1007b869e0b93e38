"""Rows of the_cauldron: `images`, and `texts` with a question and its answer each.

The questions of a row are independent of one another. Whether they become turns of one chat, where
a question sees the answers before it, or a row each, the recipe has to say. The images are shown
before the first question.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal

from vtool.data.chats import VISUALS, ColumnsReader, answer_text, text, visuals
from vtool.data.messages_layout import TAG, Malformed
from vtool.data.row import shown_value
from vtool.diagnostics import Origin

_READ = ("texts", *VISUALS)
_OF_TEXTS = ("user", "assistant")


class Cauldron(ColumnsReader):
    """Rows of one file or folder; with `texts: rows`, a row for each question."""

    format = "cauldron"
    reads = _READ
    words = "questions in the_cauldron's layout"

    def __init__(
        self, path: str, label: str | None = None, *, texts: Literal["turns", "rows"], **more: Any
    ) -> None:
        """Find the rows of `path`, and with `texts: rows` count the questions of each.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.
            texts: what the questions of a row become.

        Raises:
            Findings: as `open_records`.
        """
        super().__init__(path, label, **more)
        self.texts = texts
        self.ends = tuple(accumulate(self._counts())) if texts == "rows" else ()

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        texts = record.get("texts")
        first = texts[0] if isinstance(texts, list) and texts else None
        return isinstance(first, Mapping) and {"user", "assistant"} <= first.keys()

    def __len__(self) -> int:
        return (self.ends[-1] if self.ends else 0) if self.texts == "rows" else len(self.records)

    def name(self, index: int) -> str:
        place, question = self._find(index)
        more = f"#{question + 1}" if self.texts == "rows" else ""
        return f"{self.records.name(place)}{more}"

    def origin(self, index: int) -> Origin:
        return self.records.origin(self._find(index)[0])

    def record(self, index: int) -> dict[str, Any]:
        place, question = self._find(index)
        record = self.records.record(place)
        if self.texts == "rows" and isinstance(texts := record.get("texts"), list):
            return {**record, "texts": texts[question : question + 1]}
        return record

    def given_id(self, record: Mapping[str, Any]) -> str:
        """Return no id: it may be that of several questions."""
        return ""

    def place(self, index: int) -> int:
        return self._find(index)[0]

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        texts = record.get("texts")
        if not isinstance(texts, list) or not texts:
            raise malformed(
                f'"texts" must be a list with a question; here it is {shown_value(texts)}'
            )
        found = visuals(record, malformed)
        messages: list[dict[str, Any]] = []
        for number, each in enumerate(texts, 1):
            if not isinstance(each, Mapping):
                raise malformed(f'"texts" has {shown_value(each)}, which is no question and answer')
            question = text(each.get("user"), "texts.user", malformed)
            answer = answer_text(each.get("assistant"), "texts.assistant", malformed)
            rest = {key: value for key, value in each.items() if key not in _OF_TEXTS}
            if TAG in question:
                raise malformed(f"question {number} has {TAG} as text; the images are shown first")
            messages += [
                {"role": "user", "content": question},
                {**rest, "role": "assistant", "content": answer},
            ]
        if shown_first := [{"type": "image"} for _ in found.get("images", ())]:
            asked = {"type": "text", "text": messages[0]["content"]}
            messages[0]["content"] = [*shown_first, asked]
        return {"messages": messages, **found}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "texts": self.texts, "rows": len(self)}

    def _counts(self) -> list[int]:
        """Return how many questions each row has; one that cannot be read counts as one."""
        if (column := getattr(self.records, "column", None)) and (found := column("texts")):
            from vtool.data.containers.columns import pyarrow

            counts = pyarrow("pyarrow.compute", self.records.path).list_value_length(found)
            return [count or 1 for count in counts.to_pylist()]
        counted = []
        for index in range(len(self.records)):
            try:
                texts = self.records.record(index).get("texts")
            except ValueError:  # it is a finding of that row, once it is asked for
                texts = None
            counted.append(len(texts) if isinstance(texts, list) and texts else 1)
        return counted

    def _find(self, index: int) -> tuple[int, int]:
        if self.texts == "turns":
            return index, 0
        place = bisect_right(self.ends, index)
        return place, index - (self.ends[place - 1] if place else 0)
