"""Micro-batches are compared by the ids that they share; noise of the fit is no weighting."""

from pathlib import Path

import pytest

from tests.watch.made import LENGTHS, Change, Fact, U, changed, healthy
from tests.watch.test_conclusions import conclude


def by_id(scales: tuple[float, float], times: float, share: float, apart: float = 0.0) -> Change:
    """Give micro-batches a scale each, and a share of their tokens, of id 9, some times it."""

    def change(fact: Fact) -> None:
        if fact["kind"] != "micro":
            return
        n, base = fact["supervised"], scales[fact["index"]] / 36
        often = max(2, round(share * n))
        fact["measured_weight"] = [base, base, base * times, base * times]
        if often * 2 > n:
            fact["measured_weight"][1] = base * times
        fact["uneven"] = min(often, n - often) if times != 1 else 0
        fact["sum"] = base * (n - often + often * times)
        fact["by_target"] = {
            "7": [n - often, base, 32 * U, 0.0],
            "9": [often, base * times, 32 * U, apart],
        }
        for row in fact["per_row"]:
            row |= {"least": base, "greatest": base * times, "sum": fact["sum"] * row["n"] / n}

    return change


def weights(tmp_path: Path, change: Change) -> tuple[set[str], str]:
    result = conclude(tmp_path, changed(healthy(), change))
    own = {one.severity for one in result.findings if one.rule == "token-weights-differ"}
    return own, result.checks["token-weights-differ"]


@pytest.mark.parametrize("times", [1.02, 2.0, 0.5])
@pytest.mark.parametrize("share", [0.2, 0.45, 0.7])
def test_class_weights_are_a_note_whatever_their_share(
    tmp_path: Path, times: float, share: float
) -> None:
    assert weights(tmp_path, by_id((1.0, 1.0), times, share)) == ({"note"}, "passed")


@pytest.mark.parametrize("times", [1.02, 2.0])
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_a_mean_of_means_is_an_error_beside_class_weights(
    tmp_path: Path, times: float, share: float
) -> None:
    first, second = (18 / sum(lengths) for lengths in LENGTHS)
    found = weights(tmp_path, by_id((first, second), times, share))
    assert found == ({"error", "note"}, "failed")


def test_weights_that_differ_within_one_id_are_no_weights_of_classes(tmp_path: Path) -> None:
    """Focal losses and the like: medians of micro-batches differ by what is in them."""
    found, state = weights(tmp_path, by_id((1.0, 1.1), 3.0, 0.45, apart=0.5))
    assert "error" not in found
    assert "warning" not in found
    assert state != "passed"


def test_noise_of_the_fit_is_no_weighting(tmp_path: Path) -> None:
    def noisy(fact: Fact) -> None:
        if fact["kind"] == "micro":
            mean = fact["measured_weight"][1]
            fact["measured_weight"] = [mean * 0.995, mean, mean, mean]
            fact["tolerance"] = [1e-6, 1e-6, 0.03, 0.03]

    assert weights(tmp_path, noisy) == (set(), "passed")
