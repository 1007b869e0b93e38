"""Pictures of rows, for reports."""

from typing import Any

from vtool.data.loader import EncodedRows
from vtool.data.row import Row
from vtool.data.video import open_clip


def first_picture(row: Row, rows: EncodedRows) -> Any:
    """Return a row's first image, else the last frame shown of its first video, else None."""
    processor = rows.processor
    if row.images:
        return processor.pictures.read(row.images[0])[0]
    if not row.videos:
        return None
    return open_clip(row, row.videos[0], processor.video, processor.pictures).frames[-1]
