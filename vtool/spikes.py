"""Spikes of the loss: steps far above those just before them, beyond what batches differ by."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from statistics import median

WINDOW, RECENT = 64, 16
"""Steps just before one: those that say how much losses differ, and those that say what is usual.
"""
FEWEST = 20
"""Steps before which nothing is reported: too few to know how much losses differ."""
DEVIATIONS = 8.0
"""Robust standard deviations above the median from which on a loss is a spike.

A deviation that is estimated from the differences of 64 normal values is within 50 % of the true
one 997 times in 1000. So 8 of them are at least 4 true ones, which one loss in 31,000 passes.
"""
TIMES_HIGHEST = 3.0
"""Distances of the farthest loss above the median, of which a spike has at least so many.

Losses of single batches have heavy tails, late in a run above all; there the farthest one says more
than any deviation. What came while the loss fell was below the median, and says nothing.
"""
TIMES_THIRD = 1.5
"""Distances of the third farthest, spikes among them: what comes again and again is usual."""
TIMES_ABOVE = 10.0
"""Times the farthest loss: so many are a spike however much losses differ.

Late in a run they differ so much that 8 deviations are a factor of 500: a loss of 3.5 where none of
64 was above 0.2, with a gradient norm of 260 where 0.2 was usual, was none.
"""
NATS, _LEAST = 0.01, 0.2
"""Differences of less are none: of a loss of nearly 0, a hundred times as much is little still; nor
is one of a fifth.
"""
_NEW_LEVEL = 8
"""Steps in a row after which a higher loss is the usual one."""
# A normal distribution's deviation, in medians of the differences of two: 1.4826 / √2. Differences
# of neighbors are the same while the loss falls, when distances from any median are not.
_OF_CHANGES = 1.0484


@dataclass(frozen=True, slots=True)
class Spike:
    """Steps in a row of a loss far above the usual, by the highest of them."""

    step: int
    loss: float
    usual: float
    """The median of the last steps before."""
    first: int
    last: int

    @property
    def times(self) -> float:
        """The loss as a multiple of the usual one, both of them `NATS` more."""
        return (self.loss + NATS) / (self.usual + NATS)


def find_spikes(losses: Iterable[tuple[int, float]]) -> list[Spike]:
    """Return the spikes among steps and their losses; those that are not finite are passed over.

    What is compared is the logarithm of the loss: batches differ in proportion to it.
    """
    window: deque[float] = deque(maxlen=WINDOW)
    above: deque[tuple[float, bool]] = deque(maxlen=WINDOW)
    spikes: list[Spike] = []
    high: list[float] = []
    for step, loss in losses:
        if not math.isfinite(loss) or loss < 0:
            continue
        value = math.log(loss + NATS)
        usual = median(list(window)[-RECENT:]) if len(window) >= FEWEST else math.inf
        is_high = value - usual > _far(window, usual, above)
        if not (is_high and high):  # a spike of several steps is one
            above.append((max(0.0, value - usual), is_high))
        if not is_high:
            window.append(value)
            high.clear()
            continue
        before = spikes.pop() if high else None
        spikes.append(_joined(before, step, loss, math.exp(usual) - NATS))
        high.append(value)
        if len(high) == _NEW_LEVEL:
            window = deque(high, maxlen=WINDOW)
            high.clear()
    return spikes


def _far(window: deque[float], usual: float, above: deque[tuple[float, bool]]) -> float:
    """Return the distance from the usual value beyond which one is a spike."""
    changes = [abs(after - before) for before, after in pairwise(window)]
    deviation = _OF_CHANGES * median(changes) if changes else 0.0
    ordinary = max((far for far, is_high in above if not is_high), default=0.0)
    third = nlargest(3, (far for far, _ in above))[2:]
    by_spread = max(DEVIATIONS * deviation, TIMES_HIGHEST * ordinary)
    return max(
        min(by_spread, ordinary + math.log(TIMES_ABOVE)),
        TIMES_THIRD * sum(third),
        _LEAST,
    )


def _joined(before: Spike | None, step: int, loss: float, usual: float) -> Spike:
    """Return a spike of one step, or the one before with this step."""
    if before is None:
        return Spike(step, loss, usual, step, step)
    if loss > before.loss:
        return Spike(step, loss, before.usual, before.first, step)
    return Spike(before.step, before.loss, before.usual, before.first, step)
