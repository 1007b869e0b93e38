"""The plan: the rows of each step, a function of the seed and the step alone."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Plan:
    """The order of `rows` rows.

    Each epoch is a permutation of its own; its last step is smaller where they do not divide.
    """

    rows: int
    global_batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.global_batch_size)

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, of a step, from 1."""
        return (step - 1) // self.steps_per_epoch

    def step(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a global step, from 1.

        A step never crosses an epoch, so resuming needs only the step's number.
        """
        place = (step - 1) % self.steps_per_epoch
        order = _permutation(self.rows, self.seed, self.epoch(step))
        return order[place * self.global_batch_size : (place + 1) * self.global_batch_size]

    def samples(self, steps: int) -> int:
        """Return the number of rows of the first `steps` steps."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        return epochs * self.rows + min(rest * self.global_batch_size, self.rows)


def share(
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
