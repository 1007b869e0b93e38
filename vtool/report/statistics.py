"""The few statistics of the page, in plain Python."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vtool.report.run_files import Prediction, StepLine

MOST_CLASSES = 12
"""References up to which there is a matrix; of more, the pairs that are confused most."""
_MOST_PAIRS = 20
_SHORT_LABEL = 4


def smooth(values: Sequence[float], span: float) -> list[float]:
    """Return an exponential moving average over about `span` values.

    It is not pulled towards 0 at its start. A value that is not finite stays a hole where it is,
    and does not spread to what follows.
    """
    keep = 1 - 2 / (span + 1)
    total = weight = 0.0
    smoothed = []
    for value in values:
        if math.isfinite(value):
            total = keep * total + (1 - keep) * value
            weight = keep * weight + (1 - keep)
        smoothed.append(total / weight if math.isfinite(value) else math.nan)
    return smoothed


def thin(xs: Sequence[float], ys: Sequence[float], buckets: int) -> tuple[list[float], list[float]]:
    """Return at most 2 × `buckets` of the points.

    The lowest and the highest of each stretch are kept, so that no spike is lost.
    """
    if len(xs) <= 2 * buckets:
        return list(xs), list(ys)
    kept: set[int] = set()
    for bucket in range(buckets):
        stretch = range(bucket * len(xs) // buckets, (bucket + 1) * len(xs) // buckets)
        finite = [index for index in stretch if math.isfinite(ys[index])]
        # A hole is kept as one: drawing a line across it would hide that the values were not
        # finite.
        kept |= (
            {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
            if finite
            else {stretch[0]}
        )
    chosen = sorted(kept)
    return [xs[index] for index in chosen], [ys[index] for index in chosen]


def tokens_per_second(steps: Sequence[StepLine]) -> tuple[list[int], list[float]]:
    """Return steps, and the throughput of each: its tokens over the seconds since the step before.

    The first step has no step before it.
    """
    positions, rates = [], []
    for before, now in pairwise(steps):
        if (
            now.tokens is not None
            and now.seconds is not None
            and before.seconds is not None
            and now.seconds > before.seconds
        ):
            positions.append(now.step)
            rates.append(now.tokens / (now.seconds - before.seconds))
    return positions, rates


@dataclass(frozen=True, slots=True)
class ConfusionRow:
    """The answers to the test rows with one reference."""

    reference: str
    counts: tuple[int, ...]
    """One number for each label, in the order of `Confusion.labels`."""
    other: int
    """Answers that are no label."""

    @property
    def total(self) -> int:
        """The rows with this reference."""
        return sum(self.counts) + self.other


@dataclass(frozen=True, slots=True)
class Confusion:
    """The confusion matrix: how often each reference was answered how."""

    labels: tuple[str, ...]
    rows: tuple[ConfusionRow, ...]

    @property
    def upright(self) -> bool:
        """True where labels have to stand upright over their columns."""
        return any(len(label) > _SHORT_LABEL for label in self.labels)

    @property
    def other(self) -> int:
        """All answers that are no label."""
        return sum(row.other for row in self.rows)


def confusion(predictions: Sequence[Prediction]) -> Confusion | None:
    """Return the confusion matrix; None where there is one reference, or too many to be classes."""
    labels = sorted({prediction.reference.strip() for prediction in predictions}, key=_natural)
    if not 2 <= len(labels) <= MOST_CLASSES or len(labels) == len(predictions):
        return None
    # The run decided what counts as correct (it may fold case, say); the matrix must not disagree
    # with it.
    pairs = Counter(
        (p.reference.strip(), (p.reference if p.correct else p.answer).strip()) for p in predictions
    )
    rows = []
    for reference in labels:
        counts = tuple(pairs[reference, label] for label in labels)
        rows.append(
            ConfusionRow(
                reference,
                counts,
                sum(n for (of, _), n in pairs.items() if of == reference) - sum(counts),
            )
        )
    return Confusion(tuple(labels), tuple(rows))


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference, and what was answered in its place."""

    reference: str
    answer: str
    count: int
    of: int
    """Rows with this reference."""


def pairs(predictions: Sequence[Prediction]) -> list[Pair]:
    """Return the answers confused most, where there are too many classes for a matrix.

    Where references are hardly ever the same they are no classes.
    """
    rows = Counter(prediction.reference.strip() for prediction in predictions)
    if len(rows) <= MOST_CLASSES or 2 * len(rows) > len(predictions):
        return []
    wrong = Counter(
        (prediction.reference.strip(), prediction.answer.strip())
        for prediction in predictions
        if not prediction.correct
    )
    found = [Pair(of, answer, count, rows[of]) for (of, answer), count in wrong.items()]
    found.sort(key=lambda pair: (-pair.count, _natural(pair.reference), pair.answer))
    return found[:_MOST_PAIRS]


def _natural(label: str) -> tuple[float, str]:
    """Return a sort key: numbers by value (2 before 10), then words."""
    try:
        value = float(label)
    except ValueError:
        return math.inf, label
    return (value if math.isfinite(value) else math.inf), label
