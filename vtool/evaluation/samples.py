"""Pictures of rows, for reports."""

from typing import Any

from vtool.data.loader import EncodedRows
from vtool.data.row import Row
from vtool.data.video import open_clip


def first_picture(row: Row, rows: EncodedRows) -> Any:
    """Return a row's first image, else the last frame shown of its first video, else None."""
    return picture_of(row, 0, rows) if row.images or row.videos else None


def picture_of(row: Row, place: int, rows: EncodedRows) -> Any:
    """Return one of a row's images; without images, the last frame shown of one of its videos."""
    processor = rows.processor
    if row.images:
        return processor.pictures.read(row.images[place])[0]
    return open_clip(row, row.videos[place], processor.video, processor.pictures).frames[-1]
