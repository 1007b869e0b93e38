"""Histograms of whole numbers: few bars, with round edges, for any number of values."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BARS = 20
_STEPS = (1, 2, 5)
_WIDE = 8
"""The largest over the median, from which on bars get wider as values grow."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Values from `low` to `high`, both included."""

    low: int
    high: int
    count: int


def histogram(values: NDArray[Any]) -> list[Bar]:
    """Return bars that have every value once; empty ones in between are among them.

    Few different values have a bar each. Bars are of one round width, unless the largest value is
    far from the median: there each is wider than the one before, by one factor.
    """
    if not len(values):
        return []
    different, counts = np.unique(np.asarray(values, np.int64), return_counts=True)
    low, high = int(different[0]), int(different[-1])
    if high - low < MOST_BARS:
        edges = np.arange(low, high + 2)
    elif high > _WIDE * max(1, int(np.median(values))):
        edges = _growing(low, high)
    else:
        width = _round_width((high - low + 1) / MOST_BARS)
        edges = np.arange(low // width * width, high + width + 1, width)
    place = np.searchsorted(edges, different, side="right") - 1
    heights = np.zeros(len(edges) - 1, np.int64)
    np.add.at(heights, place, counts)
    return [
        Bar(int(edges[at]), int(edges[at + 1]) - 1, int(height))
        for at, height in enumerate(heights)
        if edges[at] <= high
    ]


def _round_width(least: float) -> int:
    power = 1
    while True:
        for step in _STEPS:
            if step * power >= least:
                return step * power
        power *= 10


def _growing(low: int, high: int) -> NDArray[Any]:
    """Return edges of which each is larger than the one before by one and the same factor."""
    first = max(1, low)
    factor = ((high + 1) / first) ** (1 / (MOST_BARS - 1))
    edges = [low]
    for power in range(1, MOST_BARS):
        edge = _two_digits(first * factor**power)
        if edges[-1] < edge <= high:
            edges.append(edge)
    return np.array([*edges, high + 1])


def _two_digits(value: float) -> int:
    digits = max(0, len(str(int(value))) - 2)
    return int(round(value / 10**digits) * 10**digits)
