"""Thumbnails of a row's images, for the page of `vtool verify --html`."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from vtool.data.loader import EncodedRows
from vtool.data.outside import check_root
from vtool.data.row import Row, shown_value
from vtool.diagnostics import Findings

OF_A_ROW = 4
"""Images of a row that are shown."""
MOST_THUMBNAILS = 40
"""Images of a page's section that are shown."""
SIDE = 128
"""The longest side of a thumbnail, in pixels."""
_MOST_PIXELS = 2**25
"""Pixels of an image that is decoded for a thumbnail; a JPEG of any size is decoded smaller."""

_PIXELATED_UP_TO = 48
"""The longest side of an image whose pixels are to be seen, not blurred away."""


class Thumbnails:
    """Thumbnails of rows' images, until a section's share of them is used up."""

    def __init__(self, rows: EncodedRows) -> None:
        self.rows, self.left = rows, MOST_THUMBNAILS
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
        for number, picture in enumerate(row.images[:count], 1):
            file = isinstance(picture, str) and not picture.startswith("data:")
            name = Path(picture).name if file else "inside the row"
            text = f"image {number} of {len(row.images)}: {name}"
            try:
                size, small = self.reader.small(picture, SIDE)
            except MemoryError:  # of the machine, not of the picture
                raise
            except Exception as error:  # each decoder raises what its file format raises
                yield {"text": text, "problem": f"is not shown: {shown_value(error)}"}
                continue
            buffer = BytesIO()
            small.save(buffer, format="JPEG", quality=75)
            code = base64.b64encode(buffer.getvalue()).decode("ascii")
            yield {
                "text": f"{text}, {size[0]} × {size[1]} pixels",
                "pixelated": max(size) <= _PIXELATED_UP_TO,
                "address": f"data:image/jpeg;base64,{code}",
            }
