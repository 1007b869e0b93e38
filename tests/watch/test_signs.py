"""Tokens that are all made less likely: by the loss, by gradients, or by the optimizer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import PLANTED, conclude, on, rules, weigh_rows


@pytest.mark.parametrize(
    ("gradient", "group", "found"),
    [
        ([-1.0, 2.0, -0.5], {}, "error"),
        ([-0.1, 0.2, -0.05], {}, "error"),  # clipped
        ([1.0, -2.0, 0.5], {"maximize": True}, "error"),
        ([-1.0, 2.0, -0.5], {"maximize": True}, None),
    ],
)
def test_a_sign_may_be_wrong_in_gradients_or_in_the_optimizer(
    tmp_path: Path, gradient: list[float], group: Fact, found: str | None
) -> None:
    facts = changed(healthy(), on("arrived", norm_gradient=gradient))
    result = conclude(tmp_path, changed(facts, on("stepped", groups=[{"lr": 0.1, **group}])))
    assert rules(result) == ({"tokens-unlearnt": found} if found else {})


def test_a_gain_that_is_maximized_unlearns_nothing(tmp_path: Path) -> None:
    facts = changed(healthy(), weigh_rows(lambda row, n: -1 / 36))
    facts = changed(facts, on("stepped", groups=[{"lr": 0.1, "maximize": True}]))
    (finding,) = conclude(tmp_path, facts).findings
    assert finding.rule == "rows-judged"
    assert "12 rows are pushed up, 0 down" in finding.message


@pytest.mark.parametrize(
    "weight",
    [
        lambda row, n: -0.5 / 36,  # one advantage, which is no mean
        lambda row, n: (-0.5 - row) / 36,
        lambda row, n: (-0.5 - row) / n / 4,
    ],
)
def test_advantages_that_are_all_negative_are_no_error(
    tmp_path: Path, weight: Callable[[int, int], float]
) -> None:
    result = conclude(tmp_path, changed(healthy(), weigh_rows(weight)))
    assert rules(result) == {"tokens-unlearnt": "note", "rows-judged": "note"}
    why = result.details["token-weights-differ"]["reason"]
    assert why == "weights are negative: rows are judged, not copied"


def test_rejected_answers_are_no_tokens_that_are_unlearnt(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), PLANTED["a preference"][1]))
    assert rules(result) == {"rows-judged": "note"}
