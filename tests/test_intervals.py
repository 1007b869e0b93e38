"""Intervals and tests against closed forms and independent computations."""

import math

import numpy as np
import pytest

from vtool.intervals import (
    bootstrap_interval,
    corpus_bootstrap,
    mcnemar,
    paired_bootstrap,
    paired_corpus_bootstrap,
    wilson_interval,
)

Z = 1.959963984540054


@pytest.mark.parametrize("trials", [1, 10, 360])
def test_wilson_interval_at_the_ends_is_the_closed_form(trials: int) -> None:
    # With no success the formula collapses to [0, z² / (n + z²)], and with all to its mirror image.
    reach = Z * Z / (trials + Z * Z)
    assert wilson_interval(0, trials) == pytest.approx((0.0, reach), abs=1e-15)
    assert wilson_interval(trials, trials) == pytest.approx((1 - reach, 1.0), abs=1e-15)


@pytest.mark.parametrize("trials", [2, 50, 1000])
def test_wilson_interval_of_one_half_is_the_closed_form(trials: int) -> None:
    reach = Z / (2 * math.sqrt(trials + Z * Z))
    assert wilson_interval(trials // 2, trials) == pytest.approx(
        (0.5 - reach, 0.5 + reach), rel=1e-12
    )


def test_wilson_bounds_solve_the_score_equation() -> None:
    share = 349 / 360
    for bound in wilson_interval(349, 360):
        assert abs(share - bound) == pytest.approx(
            Z * math.sqrt(bound * (1 - bound) / 360), rel=1e-9
        )


def test_wilson_interval_needs_a_trial() -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 1), (9, 2), (40, 61)])
def test_mcnemar_is_twice_the_binomial_tail(first: int, second: int) -> None:
    total = first + second
    outcomes = [math.comb(total, k) / 2**total for k in range(total + 1)]
    # of all outcomes, those that are no likelier than this one: the coin is fair, so both tails
    far = sum(outcomes[k] for k in range(total + 1) if abs(k - total / 2) >= abs(first - total / 2))
    assert mcnemar(first, second) == pytest.approx(min(1.0, far), rel=1e-12)


def test_mcnemar_of_many_rows_meets_the_normal_approximation() -> None:
    first, second = 5100, 4900
    z = (abs(first - second) - 1) / math.sqrt(first + second)
    assert mcnemar(first, second) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-2)


def test_the_bootstrap_of_a_mean_is_about_its_standard_error() -> None:
    values = np.random.default_rng(3).normal(2, 1, 400)
    low, high = bootstrap_interval(values.tolist())
    error = values.std() / 20
    assert (low, high) == pytest.approx(
        (values.mean() - Z * error, values.mean() + Z * error), abs=0.15 * error
    )
    assert (low, high) == bootstrap_interval(values.tolist())


def test_a_ratio_is_resampled_by_rows() -> None:
    assert bootstrap_interval([2, 4, 6], [1, 2, 3]) == (2, 2)


def test_equal_models_do_not_differ_and_a_constant_difference_does() -> None:
    low, high, p = paired_bootstrap([0.0] * 30)
    assert (low, high, p) == (0, 0, 1)
    low, high, p = paired_bootstrap([0.25] * 30)
    assert (low, high) == (0.25, 0.25)
    assert p < 0.01


def test_a_score_of_sums_has_the_interval_of_the_mean_that_it_is() -> None:
    generator = np.random.default_rng(1)
    rows = np.stack([generator.normal(1, 1, 400), np.ones(400)], 1)
    others = np.stack([rows[:, 0] - generator.normal(0.5, 0.2, 400), np.ones(400)], 1)

    def mean(sums: np.ndarray) -> float:
        return float(sums[0] / sums[1])

    low, high = corpus_bootstrap(rows, mean)
    wanted = bootstrap_interval(rows[:, 0].tolist())
    assert (low, high) == pytest.approx(wanted, abs=0.02)
    low, high, p = paired_corpus_bootstrap(rows, others, mean)
    wanted_pair = paired_bootstrap((rows - others)[:, 0].tolist())
    assert (low, high) == pytest.approx(wanted_pair[:2], abs=0.01)
    assert p == pytest.approx(1 / 1000)
    assert paired_corpus_bootstrap(rows, rows, mean) == (0, 0, 1)
