"""`data.turns`: which answers of a row are learnt, and in which sample each of them is."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from vtool.config.schema import Data
from vtool.data.coordinates import rescale_rows
from vtool.data.row import Row, RowReader
from vtool.data.sources import Rows
from vtool.diagnostics import Findings
from vtool.models.chat_template import TemplateForm, thought_of
from vtool.models.processor import Processor

OF_ANSWER = " answer "
"""Text in the name of a sample, behind its row's name and before the number of the answer."""


def prepare_rows(rows: Rows, processor: Processor, settings: Data) -> None:
    """Let rows be read as `data.coordinates` and `data.turns` say, and the template needs it."""
    rescale_rows(rows, processor, settings)
    if settings.turns == "all":
        return
    if settings.turns == "last":
        rows.replace_readers([LastAnswers(reader) for reader in rows.readers])
        return
    form = None if settings.turns == "each" else processor.form
    if form is None or form.rewrites_turns or form.rewrites_thoughts:
        rows.replace_readers([EachAnswer.of(reader, form) for reader in rows.readers])


@dataclass(frozen=True, slots=True)
class LastAnswers:
    """The rows of a reader, of which the last answer is learnt, and the chat ends there."""

    reader: RowReader

    def __len__(self) -> int:
        return len(self.reader)

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the reader: its format, the record of a row."""
        return getattr(self.reader, name)

    def __reduce__(self) -> Any:
        return type(self), (self.reader,)

    def row(self, index: int) -> Row:
        row = self.reader.row(index)
        answers = list(row.supervised())
        return ending_with(row, answers[-1]) if answers else row

    def describe(self) -> dict[str, Any]:
        return {**self.reader.describe(), "turns": "last"}


@dataclass(frozen=True, slots=True)
class EachAnswer:
    """The rows of a reader, cut into one for each answer, which is the last of its own."""

    reader: RowReader
    ends: tuple[int, ...]
    """The samples of all rows up to each."""
    form: TemplateForm | None
    """The form for whose sake rows are cut that it would write otherwise; None: all are."""

    @classmethod
    def of(cls, reader: RowReader, form: TemplateForm | None) -> "EachAnswer":
        """Count the answers of each row, which is read for it."""
        counts = (_samples(reader, index, form) for index in range(len(reader)))
        return cls(reader, tuple(accumulate(counts)), form)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the reader, as its format."""
        return getattr(self.reader, name)

    def __reduce__(self) -> Any:
        return type(self), (self.reader, self.ends, self.form)

    def _place(self, index: int) -> tuple[int, int, int]:
        """Return the row, the answer in it, and how many it has."""
        row = bisect_right(self.ends, index)
        begin = self.ends[row - 1] if row else 0
        return row, index - begin, self.ends[row] - begin

    def name(self, index: int) -> str:
        row, answer, count = self._place(index)
        return f"{self.reader.name(row)}{f'{OF_ANSWER}{answer + 1}' if count > 1 else ''}"

    def record(self, index: int) -> Mapping[str, Any]:
        """Return the record that a sample is of, as its file has it."""
        found: Mapping[str, Any] = self.reader.record(self._place(index)[0])  # type: ignore[attr-defined]
        return found

    def row(self, index: int) -> Row:
        number, answer, count = self._place(index)
        row = self.reader.row(number)
        if not _is_cut(row, self.form):
            return row
        if count == 1:
            return ending_with(row, next(iter(row.supervised()), len(row.messages) - 1))
        own_id = f"{row.given_id}{OF_ANSWER}{answer + 1}" if row.given_id else ""
        made = ending_with(row, list(row.supervised())[answer])
        return replace(made, id=self.name(index), given_id=own_id)

    def describe(self) -> dict[str, Any]:
        return {**self.reader.describe(), "turns": "each", "samples": len(self)}


def _samples(reader: RowReader, index: int, form: TemplateForm | None) -> int:
    try:
        row = reader.row(index)
    except Findings:  # the audit says it
        return 1
    return max(1, len(list(row.supervised()))) if _is_cut(row, form) else 1


def _is_cut(row: Row, form: TemplateForm | None) -> bool:
    """Return whether each answer of a row is in a sample that ends with it.

    So are those that turns follow which have the template write them in another way.
    """
    earlier = [one for one in row.messages[:-1] if one["role"] == "assistant"]
    if form is None or not earlier:
        return bool(earlier)
    return form.rewrites_turns or (form.rewrites_thoughts and any(map(thought_of, earlier)))


def ending_with(row: Row, place: int) -> Row:
    """Return a row that ends with one answer, of which alone the labels are."""
    before = [
        {**message, "weight": 0} if message["role"] == "assistant" else message
        for message in row.messages[:place]
    ]
    messages = [*before, row.messages[place]]
    kept = replace(row, messages=messages, images=(), videos=())
    shown = list(kept.visuals())
    return replace(
        kept,
        images=row.images[: shown.count("image")],
        videos=row.videos[: shown.count("video")],
    )
