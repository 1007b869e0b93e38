"""Intervals of scores, and tests of whether two models differ on the same rows."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# The 97.5 % quantile of the normal distribution: a two-sided 95 % interval.
_Z = 1.959963984540054
_RESAMPLES, _OF_CORPORA = 2000, 1000
_AT_ONCE = 2**22
"""Numbers that are drawn at once."""


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion (Wilson 1927).

    Unlike p ± z·σ it stays in 0 … 1 and is not empty at 0 or 1.
    """
    if trials <= 0:
        raise ValueError("an interval needs at least one trial")
    share, square = successes / trials, _Z * _Z / trials
    center = (share + square / 2) / (1 + square)
    reach = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    # At 0 and at 1 the formula is exact, but its rounding is not.
    return (
        0.0 if successes == 0 else center - reach,
        1.0 if successes == trials else center + reach,
    )


def bootstrap_interval(
    sums: Sequence[float], counts: Sequence[float] | None = None, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval (Efron 1979) of Σ sums / Σ counts, rows being resampled.

    Args:
        sums: of each row; its value, where there are no counts.
        counts: what a row's sum is divided by, such as its tokens; None: 1 each.
        seed: of the resampling, so that the same rows have the same interval.
    """
    means = _resampled(np.array(sums, np.float64), counts, seed)
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return low, high


def mcnemar(first_alone: int, second_alone: int) -> float:
    """Return the exact two-sided p-value of McNemar's test (1947; the binomial form).

    Of the rows that only one of two models has right, each had it by a fair coin if the models are
    equally good: p = min(1, 2 · P(X ≤ the smaller count)), X ~ B(n, ½).
    """
    total, least = first_alone + second_alone, min(first_alone, second_alone)
    if total >= 1000:
        return _large(total, least)
    tail = sum(math.comb(total, count) for count in range(least + 1))
    return float(min(1, 2 * tail / 2**total))


def _large(total: int, least: int) -> float:
    """Return the same where the binomials do not fit into a float: by their logarithms."""
    terms = np.array(
        [
            math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
            for count in range(least + 1)
        ]
    )
    top = float(terms.max())
    tail = top + math.log(float(np.exp(terms - top).sum())) - total * math.log(2)
    return min(1.0, 2 * math.exp(tail))


def paired_bootstrap(differences: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the 95 % interval of a mean difference over the same rows, and a p-value.

    The p-value is twice the part of the resampled means on the other side of 0 (Efron and
    Tibshirani 1993, chapter 16), and at least 1 / the number of resamples.
    """
    return _of_differences(_resampled(np.array(differences, np.float64), None, seed))


def corpus_bootstrap(
    rows: NDArray[np.float64], of: Callable[[NDArray[np.float64]], float], seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval of a score of all rows together.

    Args:
        rows: what each row adds to the sums that the score is of: [rows, sums].
        of: given the sums, the score.
        seed: of the resampling.
    """
    values = [of(rows[drawn].sum(0)) for drawn in _draws(len(rows), seed)]
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def paired_corpus_bootstrap(
    rows: NDArray[np.float64],
    others: NDArray[np.float64],
    of: Callable[[NDArray[np.float64]], float],
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return the 95 % interval of the difference of two such scores of the same rows, and p.

    Both have the same rows in each resample (Koehn 2004); p is as `paired_bootstrap` has it.
    """
    differences = [
        of(rows[drawn].sum(0)) - of(others[drawn].sum(0)) for drawn in _draws(len(rows), seed)
    ]
    return _of_differences(np.array(differences))


def _draws(rows: int, seed: int) -> Iterator[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    for _ in range(_OF_CORPORA):
        yield generator.integers(0, rows, rows)


def _of_differences(found: NDArray[np.float64]) -> tuple[float, float, float]:
    low, high = np.quantile(found, (0.025, 0.975)).tolist()
    side = min(float((found <= 0).mean()), float((found >= 0).mean()))
    return low, high, min(1.0, max(2 * side, 1 / len(found)))


def _resampled(
    sums: NDArray[np.float64], counts: Sequence[float] | None, seed: int
) -> NDArray[np.float64]:
    if not len(sums):
        raise ValueError("an interval needs at least one row")
    generator = np.random.default_rng(seed)
    weights = np.ones(len(sums)) if counts is None else np.array(counts, np.float64)
    each = max(1, _AT_ONCE // len(sums))
    means = []
    for start in range(0, _RESAMPLES, each):
        drawn = generator.integers(0, len(sums), (min(each, _RESAMPLES - start), len(sums)))
        means.append(sums[drawn].sum(1) / weights[drawn].sum(1))
    return np.concatenate(means)
