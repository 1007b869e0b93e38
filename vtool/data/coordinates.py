"""`data.coordinates`: the boxes and points of rows, rescaled when the rows are read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from vtool.config.schema import Data
from vtool.data.boxes import FORMS, OWN_SCALES, SCALES, WrittenBox, find_boxes, one_size
from vtool.data.row import Row, refuse, shown_value
from vtool.data.sources import Rows
from vtool.models.pictures import PictureReader
from vtool.models.processor import Processor

_DIGITS = {"unit": 4, "hundred": 1}
"""Digits behind the point; all other units have whole numbers."""
Size = tuple[int, int]


def rescale_rows(rows: Rows, processor: Processor, settings: Data) -> None:
    """Let rows be read with their boxes rescaled, as `data.coordinates` says."""
    if (asked := settings.coordinates) is not None and asked.source != asked.to:
        rows.rescale = Rescaling(asked.source, asked.to, processor.pictures, processor.resized)


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A change of the unit of boxes; it is pickled into data workers with its rows."""

    source: str
    to: str
    pictures: PictureReader
    resized: Callable[[int, int], Size | None]

    def __call__(self, row: Row) -> Row:
        """Return a row with its boxes in the other unit, and all else as it is.

        Raises:
            Findings: `coordinates-not-rescaled`.
        """
        if not (boxes := find_boxes(row)):
            return row
        own = next((box.form for box in boxes if box.form in OWN_SCALES), None)
        if own is not None:
            raise self._refused(row, f"{FORMS[own]} is of one unit, whatever the setting says")
        scales = self._scales(row)
        by_place: dict[tuple[int, int | None], list[WrittenBox]] = {}
        for box in boxes:
            by_place.setdefault((box.message, box.part), []).append(box)
        messages = [
            self._message(message, place, by_place, scales)
            for place, message in enumerate(row.messages)
        ]
        return replace(row, messages=messages)

    def _scales(self, row: Row) -> tuple[Fraction, Fraction]:
        """Return the factors of x and y."""
        sizes = {unit: (count, count) for unit, count in SCALES.items()}
        if self.source not in SCALES or self.to not in SCALES:
            size = self._size(row)
            sizes["absolute"] = size
            if "resized" in (self.source, self.to):
                if (small := self.resized(*size)) is None:
                    what = f"how the model resizes {size[0]} × {size[1]} pixels is not known"
                    raise self._refused(row, what)
                sizes["resized"] = small
        (left, top), (right, bottom) = sizes[self.source], sizes[self.to]
        return Fraction(right, left), Fraction(bottom, top)

    def _size(self, row: Row) -> Size:
        if not row.images:
            raise self._refused(row, "the row has boxes and no image whose size they are of")
        try:
            size = one_size(row, self.pictures.upright_size)
        except MemoryError:  # of the machine, not of the picture
            raise
        except Exception as error:  # each decoder raises what its file format raises
            raise self._refused(
                row, f"the size of its image cannot be read: {shown_value(error)}"
            ) from error
        if size is None:
            what = f"its {len(row.images)} images have different sizes, and no box names one"
            raise self._refused(row, what)
        return size

    def _refused(self, row: Row, why: str) -> Exception:
        return refuse(
            "coordinates-not-rescaled",
            f"{row.id}: its boxes cannot be rescaled from {self.source} to {self.to}: {why}",
            row.origin,
            parameter="data.coordinates",
        )

    def _message(
        self,
        message: Mapping[str, Any],
        place: int,
        boxes: Mapping[tuple[int, int | None], Sequence[WrittenBox]],
        scales: tuple[Fraction, Fraction],
    ) -> Mapping[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            own = boxes.get((place, None), ())
            return {**message, "content": self._text(content, own, scales)} if own else message
        if not isinstance(content, list):
            return message
        parts = [
            {**part, "text": self._text(part["text"], boxes[place, at], scales)}
            if (place, at) in boxes
            else part
            for at, part in enumerate(content)
        ]
        return {**message, "content": parts}

    def _text(
        self, text: str, boxes: Sequence[WrittenBox], scales: tuple[Fraction, Fraction]
    ) -> str:
        numbers = sorted(_rescaled(boxes, scales))
        made, done = [], 0
        for (begin, end), value in numbers:
            made += [text[done:begin], self._written(value)]
            done = end
        return "".join([*made, text[done:]])

    def _written(self, value: Fraction) -> str:
        digits = _DIGITS.get(self.to, 0)
        text = f"{float(round(value, digits)):.{digits}f}"
        return text.rstrip("0").rstrip(".") if digits else text


def _rescaled(
    boxes: Sequence[WrittenBox], scales: tuple[Fraction, Fraction]
) -> Iterator[tuple[tuple[int, int], Fraction]]:
    """Yield the place of each number of boxes in their text, and the number rescaled."""
    for box in boxes:
        for place, (span, number) in enumerate(zip(box.spans, box.numbers, strict=True)):
            yield span, number * scales[place % 2]
