import math

import pytest

from vtool.report.run_files import Prediction, StepLine
from vtool.report.statistics import Pair, confusion, pairs, smooth, thin, tokens_per_second


def answered(reference: str, answer: str, correct: bool | None = None) -> Prediction:
    return Prediction(
        "row", "?", reference, answer, answer == reference if correct is None else correct, None
    )


def at(step: int, seconds: float, tokens: float = 100) -> StepLine:
    return StepLine(step, None, None, None, None, tokens, None, None, seconds)


def test_smoothing_leaves_a_constant_as_it_is() -> None:
    assert smooth([2.5] * 9, span=4) == pytest.approx([2.5] * 9)


def test_smoothing_is_the_weighted_mean_of_what_came_before() -> None:
    # span 3: weights 1/2, 1/4, 1/8 … of the last, the one before, …
    assert smooth([1.0, 2.0, 4.0], span=3) == pytest.approx(
        [1, (2 * 2 + 1) / 3, (4 * 4 + 2 * 2 + 1) / 7]
    )


def test_what_is_not_finite_does_not_spread() -> None:
    smoothed = smooth([1.0, math.nan, 1.0, math.inf, 1.0], span=5)
    assert smoothed[0::2] == pytest.approx([1, 1, 1])
    assert math.isnan(smoothed[1])
    assert math.isnan(smoothed[3])


def test_thinning_keeps_every_spike() -> None:
    values = [0.0] * 10_000
    values[1234], values[7777] = 50.0, -3.0
    xs, ys = thin(range(10_000), values, buckets=100)
    assert len(xs) <= 200
    assert xs == sorted(xs)
    assert (1234, 50.0) in zip(xs, ys, strict=True)
    assert (7777, -3.0) in zip(xs, ys, strict=True)


def test_throughput_is_of_a_step_and_skips_clocks_that_stand_still() -> None:
    assert tokens_per_second([at(1, 1.0), at(2, 3.0), at(3, 3.0), at(4, 3.5)]) == (
        [2, 4],
        [50.0, 200.0],
    )


def test_confusion_counts() -> None:
    rows = [
        answered("10", "10"),
        answered("2", "10"),
        answered("2", "2"),
        answered("2", "none"),
        answered("10", "10"),
    ]
    matrix = confusion(rows)
    assert matrix is not None
    assert matrix.labels == ("2", "10"), "by value, not by letter"
    assert [(row.reference, row.counts, row.other) for row in matrix.rows] == [
        ("2", (1, 1), 1),
        ("10", (0, 2), 0),
    ]
    assert sum(row.total for row in matrix.rows) == len(rows)


def test_confusion_agrees_with_the_run_on_what_is_right() -> None:
    matrix = confusion(
        [answered("yes", "Yes.", correct=True), answered("no", "no"), answered("no", "no")]
    )
    assert matrix is not None
    assert [row.counts for row in matrix.rows] == [(2, 0), (0, 1)]


@pytest.mark.parametrize(
    "references", [[], ["a", "a"], ["a", "b"], [str(index % 13) for index in range(50)]]
)
def test_no_confusion_matrix_without_classes(references: list[str]) -> None:
    assert confusion([answered(reference, "a") for reference in references]) is None


def test_of_many_classes_the_pairs_that_are_confused_are_listed() -> None:
    rows = [answered(str(index % 13), "7") for index in range(40)]
    rows += [answered("2", "5")] * 5
    assert pairs(rows)[0] == Pair("2", "5", 5, of=8)
    assert pairs(rows)[1] == Pair("0", "7", 4, of=4)
    assert sum(pair.count for pair in pairs(rows)) == sum(not row.correct for row in rows)
    assert pairs(rows[:12]) == [], "a matrix shows them"
    assert pairs(rows[:14]) == [], "hardly any reference is there twice: these are no classes"


@pytest.mark.parametrize(("label", "upright"), [("yes", False), ("perhaps", True)])
def test_long_labels_stand_upright(label: str, upright: bool) -> None:
    matrix = confusion([answered(label, "no"), answered("no", label), answered("no", "no")])
    assert matrix is not None
    assert matrix.upright == upright
