"""A metric: the score of an answer beside its reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whole:
    """The score of all answers together, with its 95 % interval."""

    value: float
    low: float
    high: float


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
    whole: Callable[[Sequence[str], Sequence[str]], Whole] | None = None
    """Given all answers and references, their score, where it is no mean of the rows' scores."""
    needs: tuple[str, str] | None = None
    """The package that it imports, and the extra that installs it."""
    refuses: Callable[[str], bool] | None = None
    """Given a reference, if no answer to it could be scored."""
