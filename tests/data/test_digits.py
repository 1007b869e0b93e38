import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vtool.data.formats import digits
from vtool.data.formats.digits import Digits

SPLITS = {split: Digits(split) for split in ("train", "validation", "test")}
SHIFTED = Digits("train", shifted=True)


def test_every_scan_is_in_one_split() -> None:
    members = [member for source in SPLITS.values() for member in source.members]
    assert sorted(members) == list(range(1797))
    assert {split: len(source) for split, source in SPLITS.items()} == {
        "train": 1258,
        "validation": 180,
        "test": 359,
    }


def test_each_digit_is_in_each_split_in_proportion() -> None:
    whole = Counter(
        row.messages[1]["content"]
        for source in SPLITS.values()
        for row in map(source.row, range(len(source)))
    )
    for source in SPLITS.values():
        here = Counter(source.row(index).messages[1]["content"] for index in range(len(source)))
        for digit, count in whole.items():
            assert abs(here[digit] - count * len(source) / 1797) <= 1


def test_as_many_scans_of_each_digit_as_uci_says() -> None:
    """The counts are from the table in UCI's documentation, the test part."""
    shown = Counter(
        int(row.messages[1]["content"])
        for source in SPLITS.values()
        for row in map(source.row, range(len(source)))
    )
    assert [shown[digit] for digit in range(10)] == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]


def test_a_row_shows_the_scan_that_its_answer_names() -> None:
    source = SPLITS["test"]
    with gzip.open(Path(digits.__file__).with_name("digits.csv.gz"), "rt") as lines:
        table = [[int(value) for value in line.split(",")] for line in lines]
    for index in (0, 100, 358):
        row = source.row(index)
        *scan, digit = table[int(row.id.rpartition(":")[2])]
        assert row.messages[1]["content"] == str(digit)
        assert np.abs(np.asarray(row.images[0])[..., 0].ravel() / 255 * 16 - scan).max() < 0.05


MOVES = {"up": (-2, 0), "down": (2, 0), "left": (0, -2), "right": (0, 2)}


@pytest.mark.parametrize("end", MOVES)
def test_a_shifted_scan_is_moved_by_half_a_pixel(end: str) -> None:
    """A pixel of the scan is 3.5 of the picture's; what comes in at an edge is black."""
    moved = [index for index in range(len(SHIFTED)) if SHIFTED.name(index).endswith(f":{end}")]
    assert len(moved) == 1258
    for row in map(SHIFTED.row, moved[::50]):
        member = int(row.id.split(":")[2])
        scan = SPLITS["train"].row(SPLITS["train"].members.index(member))
        assert row.messages == scan.messages
        large = np.asarray(scan.images[0].resize((28, 28), Image.Resampling.BICUBIC))
        padded = np.pad(large, ((2, 2), (2, 2), (0, 0)))
        down, right = MOVES[end]
        expected = padded[2 - down : 30 - down, 2 - right : 30 - right]
        assert np.array_equal(np.asarray(row.images[0]), expected)


def test_every_shifted_row_has_a_name_of_its_own() -> None:
    names = {SHIFTED.name(index) for index in range(len(SHIFTED))}
    assert len(names) == len(SHIFTED) == 5 * 1258
    assert names > {SPLITS["train"].name(index) for index in range(1258)}
    assert SHIFTED.name(0) == SPLITS["train"].name(0) == SHIFTED.row(0).id


def test_the_rows_of_one_scan_are_held_back_together() -> None:
    groups: dict[str, set[int | None]] = {}
    for row in map(SHIFTED.row, range(len(SHIFTED))):
        groups.setdefault(row.id.split(":")[2], set()).add(row.group)
    together = [group for each in groups.values() for group in each]
    assert len(groups) == len(together) == len(set(together)) == 1258
    assert None not in together
