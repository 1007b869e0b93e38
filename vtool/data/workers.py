"""The number of data workers, where `data.workers` is `auto`."""

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from vtool.config.schema import Data

T = TypeVar("T")
MEASURED_STEPS = 3
"""Steps without workers, from which the costs of a step are known; the first one warms up."""
_FEWEST_ROWS = 1024
_RESERVE = 1.25
"""Workers beyond those that are just enough: rows and steps differ."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of a step on one rank, in seconds."""

    data: float
    """Reading and encoding its rows, on one core."""
    compute: float
    """Everything else."""

    def workers(self, spare_cores: int) -> int:
        """Return the workers that have the rows of a step ready when it is computed."""
        if self.data <= 0.02 * self.compute:  # forked processes cost more than that
            return 0
        enough = math.ceil(_RESERVE * self.data / self.compute) if self.compute > 0 else math.inf
        return int(min(spare_cores, enough))

    def in_words(self, workers: int, spare_cores: int) -> str:
        """Return the number of workers chosen, and the measured times behind it, in a line."""
        few = f", of {spare_cores} spare cores" if workers == spare_cores else ""
        return (
            f"data.workers=auto: {workers} for each rank{few}; the rows of a step take"
            f" {self.data:.3g} s of one core, the rest of it {self.compute:.3g} s"
        )


def measure_steps(steps: Iterator[T], count: int) -> Generator[T, None, StepCosts]:
    """Yield the next `count` steps, and return the seconds that one of them costs.

    Of the rest of a step the least is taken: evaluations and checkpoints are between some steps.
    Of its data the most: rows that are kept from the audit cost nothing.
    """
    data, compute = [], []
    for _ in range(count):
        began = time.perf_counter()
        made = next(steps)
        data.append(time.perf_counter() - began)
        began = time.perf_counter()
        yield made
        compute.append(time.perf_counter() - began)
    return StepCosts(max(data, default=0.0), min(compute, default=0.0))


def audit_workers(settings: Data, rows: int, cores: int) -> int:
    """Return the processes that audit so many rows: each core one, as nothing else is computed."""
    if settings.workers != "auto":
        return settings.workers or 0
    return cores if rows >= _FEWEST_ROWS and cores > 1 else 0
