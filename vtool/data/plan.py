"""The plan: the rows of each step, a function of the seed and the step alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from vtool.data.permutation import permute

MOST_SHUFFLED = 2**24
"""Rows up to which an epoch's order is an array: 128 MiB, made within a second or two."""
_AT_ONCE = 2**16
"""Samples that are counted together."""


@dataclass(frozen=True, slots=True)
class SourceShare:
    """One source's part of an epoch."""

    rows: int
    """Rows of the source, which follow those of the part before."""
    samples: int
    """Samples of them in an epoch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The order of `rows` rows.

    Each epoch is a permutation of its own; its last step is smaller where they do not divide.
    """

    rows: int
    global_batch_size: int
    seed: int
    parts: tuple[SourceShare, ...] = ()
    """Sources that give more or less than each row once an epoch. Empty: all rows, once."""

    @property
    def order(self) -> str:
        """The name of the formula that orders an epoch, which a checkpoint keeps."""
        shuffled = not self.parts and self.rows <= MOST_SHUFFLED
        return "RandomState.permutation" if shuffled else "Feistel network of 8 rounds"

    @property
    def samples_per_epoch(self) -> int:
        """Rows that an epoch trains on, repeated ones each time."""
        return sum(part.samples for part in self.parts) if self.parts else self.rows

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the last of which may be smaller."""
        return -(-self.samples_per_epoch // self.global_batch_size)

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, of a step, from 1."""
        return (step - 1) // self.steps_per_epoch

    def step(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a global step, from 1.

        A step never crosses an epoch, so resuming needs only the step's number.
        """
        begin = (step - 1) % self.steps_per_epoch * self.global_batch_size
        if self.parts:
            end = min(begin + self.global_batch_size, self.samples_per_epoch)
            return self._mixed(self.epoch(step), begin, end)
        end = min(begin + self.global_batch_size, self.rows)
        return self._plain(self.epoch(step), begin, end)

    def samples(self, steps: int) -> int:
        """Return the number of rows of the first `steps` steps."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        size = self.samples_per_epoch
        return epochs * size + min(rest * self.global_batch_size, size)

    def fewest_and_most(self, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each row is trained on in the first `steps` steps, at least and at most.

        It is known from the parts alone, whatever the order: of each source, a row that was left
        out of an epoch comes before any is repeated.
        """
        epochs, rest = divmod(steps, self.steps_per_epoch)
        parts = self.parts or (SourceShare(self.rows, self.rows),)
        rows = [part.rows for part in parts]
        fewest = [epochs * part.samples // part.rows for part in parts]
        most = [-(-(epochs + bool(rest)) * part.samples // part.rows) for part in parts]
        return np.repeat(np.array(fewest), rows), np.repeat(np.array(most), rows)

    def visits(self, steps: int) -> NDArray[np.int64]:
        """Return how often each row is in the first `steps` steps, counted sample by sample."""
        counts = np.zeros(self.rows, np.int64)
        for epoch in range(self.epoch(steps) + 1 if steps else 0):
            done = epoch * self.steps_per_epoch
            size = min((steps - done) * self.global_batch_size, self.samples_per_epoch)
            for begin in range(0, size, _AT_ONCE):
                end = min(begin + _AT_ONCE, size)
                mixed = self._mixed if self.parts else self._plain
                counts += np.bincount(mixed(epoch, begin, end), minlength=self.rows)
        return counts

    def _plain(self, epoch: int, begin: int, end: int) -> NDArray[np.int64]:
        if self.rows > MOST_SHUFFLED:
            return permute(np.arange(begin, end), self.rows, (self.seed, epoch))
        return _permutation(self.rows, self.seed, epoch)[begin:end]

    def _mixed(self, epoch: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return the rows of a part of an epoch.

        The rows of each source come pass after pass, each in an order of its own; an epoch takes
        the next ones of each, shuffled. Nothing is kept: an epoch may have any size.
        """
        drawn = permute(np.arange(begin, end), self.samples_per_epoch, (self.seed, epoch, 0))
        ends = np.array(list(accumulate(part.samples for part in self.parts)))
        of = np.searchsorted(ends, drawn, side="right")
        rows = np.empty_like(drawn)
        first = 0
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(of == number)
            within = drawn[here] - (ends[number] - part.samples)
            passes, places = np.divmod(epoch * part.samples + within, max(1, part.rows))
            for each in np.unique(passes).tolist():
                at = passes == each
                key = (self.seed, each, number + 1)
                rows[here[at]] = first + permute(places[at], part.rows, key)
            first += part.rows
        return rows


def weighted(rows: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return how many samples of each source an epoch has, so that they are as their weights.

    The source that is used up first has each row once. The counts are exact, by largest remainder.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    total = sum(exact)
    size = min(count * total / weight for count, weight in zip(rows, exact, strict=True))
    shares = [size * weight / total for weight in exact]
    samples = [int(share) for share in shares]
    left = int(size) - sum(samples)
    order = sorted(range(len(rows)), key=lambda at: samples[at] - shares[at])
    for at in order[:left]:
        samples[at] += 1
    return samples


def rank_micro_batches(
    rows: NDArray[np.int64], rank: int, world: int, micro_batch_size: int
) -> list[tuple[int, ...]]:
    """Return one rank's micro-batches of a global step; none if it has fewer rows than ranks."""
    own = [int(row) for row in rows[rank::world]]
    return [
        tuple(own[start : start + micro_batch_size])
        for start in range(0, len(own), micro_batch_size)
    ]


@lru_cache(maxsize=2)
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    # RandomState, not Generator: numpy promises that its stream never changes, so a run resumes the
    # same under another version.
    return np.random.RandomState(
        np.random.MT19937(np.random.SeedSequence([seed, epoch]))
    ).permutation(rows)
