"""The settings of format `digits`; `vtool/data/formats/digits.py` reads it."""

from typing import ClassVar, Literal

from vtool.config.schema.formats.entry import RowsEntry


class DigitsSource(RowsEntry):
    """scikit-learn's 1797 scans of handwritten digits.

    Each row is an image, a question and a one-digit answer.
    """

    has_keys: ClassVar = False
    format: Literal["digits"]
    """The source of the rows, and their format."""
    split: Literal["train", "validation", "test"]
    """The part of the one fixed, stratified split."""
    shifted: bool = False
    """Add each scan four times more, moved by half a pixel up, down, left and right."""

    def own_rows(self) -> dict[str, object]:
        """Return the split alone: a moved scan is no other scan."""
        return {name: value for name, value in super().own_rows().items() if name != "shifted"}
