"""Thumbnails of a row's images, for the page of `vtool verify --html`."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import ImageDraw

from vtool.data.box_conventions import IN_WORDS
from vtool.data.boxes import OWN_SCALES, SCALES, WrittenBox, find_boxes
from vtool.data.loader import EncodedRows
from vtool.data.outside import check_root
from vtool.data.row import Row, shown_value
from vtool.diagnostics import Findings
from vtool.words import plural

OF_A_ROW = 4
"""Images of a row that are shown."""
MOST_THUMBNAILS = 40
"""Images of a page's section that are shown."""
SIDE = 128
"""The longest side of a thumbnail, in pixels."""
BOXED_SIDE = 320
"""The longest side of one on which boxes are drawn."""
_MOST_PIXELS = 2**25
"""Pixels of an image that is decoded for a thumbnail; a JPEG of any size is decoded smaller."""

_PIXELATED_UP_TO = 48
"""The longest side of an image whose pixels are to be seen, not blurred away."""


class Thumbnails:
    """Thumbnails of rows' images, until a section's share of them is used up."""

    def __init__(self, rows: EncodedRows, unit: str | None = None) -> None:
        """Begin with none.

        Args:
            unit: of boxes that are drawn, as `data.coordinates` has it; None: none is.
        """
        self.rows, self.left, self.unit = rows, MOST_THUMBNAILS, unit
        reader = rows.processor.pictures
        self.reader = replace(reader, most_pixels=min(reader.most_pixels, _MOST_PIXELS))

    def of(self, index: int) -> dict[str, Any]:
        """Return a row's thumbnails: each an address and its text, or why there is none.

        Empty for a row without images, one that cannot be read, and one with a file outside of
        `data.root`.
        """
        try:
            row = self.rows.rows.row(index)
            if self.rows.settings.root is not None:
                check_root(row, self.rows.settings.root)
        except Findings:  # the row's own finding says it
            return {}
        if not row.images:
            return {}
        count = min(OF_A_ROW, self.left, len(row.images))
        self.left -= count
        made = list(self._made(row, count))
        return {"thumbnails": made, "more_images": len(row.images) - len(made)}

    def _made(self, row: Row, count: int) -> Iterator[dict[str, Any]]:
        boxes = find_boxes(row)
        drawn = boxes if len(row.images) == 1 and self._unit_of(boxes) else []
        for number, picture in enumerate(row.images[:count], 1):
            file = isinstance(picture, str) and not picture.startswith("data:")
            name = Path(picture).name if file else "inside the row"
            text = f"image {number} of {len(row.images)}: {name}"
            try:
                size, small = self.reader.small(picture, BOXED_SIDE if drawn else SIDE)
                text = f"{text}, {size[0]} × {size[1]} pixels"
                if drawn:
                    self._draw(small, size, drawn)
                    unit = IN_WORDS[self._unit_of(boxes) or ""]
                    text += f"; {plural(len(boxes), 'box or point', 'boxes and points')} in {unit}"
            except MemoryError:  # of the machine, not of the picture
                raise
            except Exception as error:  # each decoder raises what its file format raises
                yield {"text": text, "problem": f"is not shown: {shown_value(error)}"}
                continue
            buffer = BytesIO()
            # thin lines need all colors
            small.save(buffer, format="JPEG", quality=75, subsampling=0 if drawn else 2)
            code = base64.b64encode(buffer.getvalue()).decode("ascii")
            yield {
                "text": text,
                "pixelated": max(size) <= _PIXELATED_UP_TO,
                "boxed": bool(drawn),
                "address": f"data:image/jpeg;base64,{code}",
            }

    def _unit_of(self, boxes: Sequence[WrittenBox]) -> str | None:
        """Return the unit that a row's boxes are drawn in; None for one without."""
        own = next((box.form for box in boxes if box.form in OWN_SCALES), None)
        return own or (self.unit if boxes else None)

    def _draw(self, small: Any, size: tuple[int, int], boxes: Sequence[WrittenBox]) -> None:
        """Draw boxes, and points as small circles, on the copy of a picture of this size."""
        unit = self._unit_of(boxes)
        resized = self.rows.processor.resized(*size) or size
        parts = {name: (count, count) for name, count in (SCALES | OWN_SCALES).items()}
        across, down = {**parts, "absolute": size, "resized": resized}[unit or ""]
        x, y = small.width / across, small.height / down
        pen = ImageDraw.Draw(small)
        for box in boxes:
            left, top, right, bottom = box.edges
            corners = sorted((left * x, right * x)), sorted((top * y, bottom * y))
            (left, right), (top, bottom) = corners
            point = len(box.numbers) == 2
            edge = 4 if point else 0
            shape = (left - edge, top - edge, right + edge, bottom + edge)
            for color, width in (("white", 4), ("#d4006a", 2)):
                (pen.ellipse if point else pen.rectangle)(shape, outline=color, width=width)
