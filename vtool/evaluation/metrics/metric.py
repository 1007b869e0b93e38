"""A metric: the score of an answer against its reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Whole:
    """The score of all answers together, of sums over rows."""

    rows: Callable[[Sequence[str], Sequence[str]], NDArray[np.float64]]
    """Given answers and references, what each row adds to the sums: [rows, sums]."""
    of: Callable[[NDArray[np.float64]], float]
    """Given the sums, the score."""
    remark: Callable[[NDArray[np.float64]], str | None]
    """Given the sums, what must be known besides the score, if anything."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A member of the registry `METRICS`."""

    name: str
    says: str
    """The score in a few words, for the table and the documentation."""
    score: Callable[[str, str], float]
    """Given an answer and its reference, a number; 1 is best unless `says` says otherwise."""
    proportion: bool = False
    """Each row scores 0 or 1."""
    fits: Callable[[Sequence[str]], bool] | None = None
    """Given all references, if the metric is certainly meant for them; None: only when asked."""
    whole: Whole | None = None
    """The score of all answers, where it is no mean of the rows' scores."""
    needs: tuple[str, str] | None = None
    """The package that it imports, and the extra that installs it."""
    refuses: Callable[[str], bool] | None = None
    """Given a reference, if no answer to it could be scored."""
