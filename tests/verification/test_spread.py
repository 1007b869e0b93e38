"""Histograms: every value is in one bar, and there are few."""

from itertools import pairwise

import numpy as np
import pytest

from vtool.verification.spread import MOST_BARS, histogram

RANDOM = np.random.RandomState(0)
CASES = {
    "one value": np.array([7]),
    "zeros": np.zeros(5, int),
    "few": np.array([0, 1, 1, 3]),
    "uniform": RANDOM.randint(100, 1100, 5000),
    "far from zero": RANDOM.randint(10**6, 10**6 + 300, 5000),
    "log-normal": RANDOM.lognormal(6, 1.2, 20_000).astype(int),
    "zeros and one giant": np.array([0] * 50 + [10**9]),
    "pixels": np.array([3136] * 10 + [112_896] * 900 + [12_000_000] * 3),
    "unsigned": np.array([3, 900], np.uint32),
}


@pytest.mark.parametrize("name", CASES)
def test_every_value_is_counted_once_and_bars_follow_each_other(name: str) -> None:
    values = CASES[name]
    bars = histogram(values)
    assert len(bars) <= MOST_BARS + 2
    for bar in bars:
        assert bar.count == int(((values >= bar.low) & (values <= bar.high)).sum())
    assert sum(bar.count for bar in bars) == len(values)
    assert all(one.high + 1 == next.low for one, next in pairwise(bars)), "without gaps"
    assert bars[0].count
    assert bars[-1].count


def test_few_values_have_a_bar_each() -> None:
    assert [(bar.low, bar.high, bar.count) for bar in histogram(CASES["few"])] == [
        (0, 0, 1),
        (1, 1, 2),
        (2, 2, 0),
        (3, 3, 1),
    ]


def test_bars_of_values_near_each_other_have_one_round_width() -> None:
    widths = {bar.high - bar.low + 1 for bar in histogram(CASES["uniform"])}
    assert widths == {50}


def test_of_nothing_there_are_no_bars() -> None:
    assert histogram(np.zeros(0, int)) == []
