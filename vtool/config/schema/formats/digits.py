"""The settings of format `digits`; `vtool/data/formats/digits.py` reads it."""

from typing import Literal

from vtool.config.schema.formats.entry import RowsEntry


class DigitsSource(RowsEntry):
    """scikit-learn's 1797 scans of handwritten digits, as an image, a question and a one-digit
    answer.
    """

    format: Literal["digits"]
    """Where rows come from, and how they are written."""
    split: Literal["train", "validation", "test"]
    """Which part of the one fixed, stratified split."""
