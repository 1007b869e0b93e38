import gzip
from collections import Counter
from pathlib import Path

import numpy as np

from vtool.data.formats import digits
from vtool.data.formats.digits import Digits

SPLITS = {split: Digits(split) for split in ("train", "validation", "test")}


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
