"""1797 real scans of handwritten digits, as a chat task.

`digits.csv.gz` is the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C.
Kaynak, UCI Machine Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0), as scikit-learn
ships it: 64 values of 0 to 16, row by row, and the digit. It lies here too because transformers
imports scikit-learn and scipy wherever it finds them, which costs each start of `vtool` 2 to 3 s.
"""

import gzip
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Self

import numpy as np

from vtool.config.schema.formats.digits import DigitsSource
from vtool.data.groups import group_of_value
from vtool.data.row import Row

QUESTION = "Which digit is shown?"
# The split is part of the task, so its seed is not the run's.
_SPLIT_SEED = 0
_SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}


_SIDE = 28
"""Pixels of a moved scan's side: 3.5 of them are one of the scan."""
_MOVES = {"": (0, 0), ":up": (0, -2), ":down": (0, 2), ":left": (-2, 0), ":right": (2, 0)}
"""Pixels of a moved scan, to the right and down, by how the row's name ends."""


class Digits:
    """One split of the scans: 1258 for training, 180 for validation, 359 for the test."""

    format: ClassVar = "digits"

    def __init__(self, split: str, shifted: bool = False) -> None:
        self.split = split
        self.members = _split()[split]
        self.shifted = shifted
        self.moves = list(_MOVES) if shifted else [""]

    @classmethod
    def open(cls, entry: DigitsSource, label: str | None, **more: Any) -> Self:
        return cls(entry.split, entry.shifted)

    def __len__(self) -> int:
        return len(self.members) * len(self.moves)

    def name(self, index: int) -> str:
        member, move = self._at(index)
        return f"digits:{self.split}:{member}{move}"

    def _at(self, index: int) -> tuple[int, str]:
        """Return which scan a row shows, and how it is moved."""
        move, place = divmod(index, len(self.members))
        return self.members[place], self.moves[move]

    def row(self, index: int) -> Row:
        from PIL import Image

        scans, targets = _load()
        member, move = self._at(index)
        scan = scans[member]  # 8 × 8, values 0 … 16
        picture = Image.fromarray(np.round(scan * (255 / 16)).astype(np.uint8))
        if move:
            large = picture.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
            picture = Image.new("L", large.size)
            picture.paste(large, _MOVES[move])
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]},
            {"role": "assistant", "content": str(targets[member])},
        ]
        # the five rows of one scan are held back together
        group = group_of_value(member) if self.shifted else None
        return Row(self.name(index), messages, [picture.convert("RGB")], group=group)

    def describe(self) -> dict[str, Any]:
        return {
            "format": "digits",
            "split": self.split,
            "shifted": self.shifted,
            "rows": len(self),
        }


@cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    """Load the scans `[1797, 8, 8]`, values 0 to 16, and the digits `[1797]` that they show."""
    with (
        files("vtool.data.formats").joinpath("digits.csv.gz").open("rb") as packed,
        gzip.open(packed, "rt") as lines,
    ):
        table = np.loadtxt(lines, delimiter=",", dtype=np.int64)
    return table[:, :64].reshape(-1, 8, 8), table[:, 64]


@cache
def _split() -> dict[str, list[int]]:
    """Split the scans by number, stratified: each digit has the same proportion in each split."""
    _, targets = _load()
    random = np.random.RandomState(_SPLIT_SEED)
    parts: dict[str, list[int]] = {name: [] for name in _SHARES}
    # Cutting each digit's scans at rounded shares would drift from the whole's; sorting by the
    # fraction within the digit does not.
    places = np.empty(len(targets))
    for digit in range(10):
        members = np.flatnonzero(targets == digit)
        places[random.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    order = np.argsort(places, kind="stable")
    ends = [
        round(len(order) * _SHARES["train"]),
        round(len(order) * (_SHARES["train"] + _SHARES["validation"])),
    ]
    for name, members in zip(parts, np.split(order, ends), strict=True):
        parts[name] = [int(member) for member in members]
    return parts
