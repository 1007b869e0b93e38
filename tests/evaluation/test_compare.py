"""Two models on the same rows: differences, their intervals, and exact tests."""

import math
from dataclasses import replace

import numpy as np
import pytest

from vtool.diagnostics import Findings
from vtool.evaluation.asking import AskedRow
from vtool.evaluation.compare import MetricDifference, compare_answers
from vtool.evaluation.metrics import METRICS as KNOWN
from vtool.evaluation.metrics import Metric
from vtool.evaluation.scoring import score_answers

ROWS = 60
METRICS = (
    Metric("exact", "equal", lambda answer, ref: float(answer == ref), proportion=True),
    Metric("share", "a mean", lambda answer, ref: len(answer) / 8),
)


def answers(given: list[str], nll: float | None = 1.0) -> list[AskedRow]:
    return [
        AskedRow(
            index=at,
            row=f"rows:{at}",
            question="?",
            reference="yes",
            answer=answer,
            tokens=2,
            stopped=False,
            confidence=0.5,
            nll=nll if nll is None else nll + at / 10,
            supervised=1 + at % 3,
            source="rows",
        )
        for at, answer in enumerate(given)
    ]


def compared(first: list[AskedRow], other: list[AskedRow]) -> dict[str, MetricDifference]:
    found = compare_answers(
        (first, score_answers(first, METRICS)), (other, score_answers(other, METRICS))
    )
    return {one.metric: one for one in found}


def test_a_proportion_has_the_exact_test_of_the_rows_in_which_models_differ() -> None:
    one = answers(["yes"] * 40 + ["no"] * 20)
    two = answers(["yes"] * 28 + ["no"] * 12 + ["yes"] * 3 + ["no"] * 17)
    found = compared(one, two)["exact"]
    assert found.alone == (12, 3)
    assert found.difference == pytest.approx(9 / ROWS)
    assert found.p == pytest.approx(2 * sum(math.comb(15, k) for k in range(4)) / 2**15)
    # the normal interval of a paired difference, which the bootstrap goes to
    deviation = math.sqrt(15 / ROWS - (9 / ROWS) ** 2) / math.sqrt(ROWS)
    assert found.low == pytest.approx(9 / ROWS - 1.96 * deviation, abs=0.02)
    assert found.high == pytest.approx(9 / ROWS + 1.96 * deviation, abs=0.02)


def test_a_mean_and_the_nll_have_the_difference_of_the_same_rows() -> None:
    one, two = answers(["yes!"] * ROWS, 1.0), answers(["yes", "yes!!"] * (ROWS // 2), 1.5)
    found = compared(one, two)
    assert found["share"].difference == pytest.approx(0.0)
    assert found["share"].p == pytest.approx(1.0, abs=0.2)
    tokens = sum(each.supervised for each in one)
    assert found["nll"].difference == pytest.approx(-0.5 * ROWS / tokens)
    assert found["nll"].low < found["nll"].difference < found["nll"].high < 0
    assert found["nll"].p is None


def test_bleu_is_compared_by_the_score_of_all_answers() -> None:
    pytest.importorskip("sacrebleu")
    from sacrebleu import corpus_bleu

    wanted = "the cat sat on the mat today"
    good, bad = f"{wanted} again", "the cat is on a mat here today"
    texts = ([good, wanted] * 30, [bad, wanted, good] * 20)
    first, other = ([replace(one, reference=wanted) for one in answers(each)] for each in texts)
    metrics = (KNOWN["bleu"],)
    scored = [score_answers(each, metrics) for each in (first, other)]
    found = {one.metric: one for one in compare_answers((first, scored[0]), (other, scored[1]))}
    scores = [corpus_bleu(each, [[wanted] * ROWS]).score for each in texts]
    assert found["bleu"].difference == pytest.approx(scores[0] - scores[1])
    assert scored[0].scores[0].low < scored[0].scores[0].value < scored[0].scores[0].high
    assert found["bleu"].low < found["bleu"].difference < found["bleu"].high
    assert found["bleu"].p is not None
    # the mean of the rows' own scores is another number
    rows = [np.mean(each.of_rows["bleu"]) for each in scored]
    assert found["bleu"].difference != pytest.approx(rows[0] - rows[1], abs=0.1)


def test_a_model_compared_with_itself_has_no_difference() -> None:
    same = answers(["yes", "no"] * (ROWS // 2))
    for one in compared(same, same).values():
        assert (one.difference, one.low, one.high) == (0, 0, 0)
        assert one.p in (1.0, None)


def test_an_nll_that_is_no_number_is_not_compared() -> None:
    assert "nll" not in compared(answers(["yes"] * 4), answers(["no"] * 4, None))


def test_other_rows_are_refused() -> None:
    one = answers(["yes"] * ROWS)
    for other in (one[:-1], [*one[:-1], replace(one[-1], reference="no")]):
        with pytest.raises(Findings, match="not asked the same rows") as raised:
            compared(one, other)
        assert [finding.rule for finding in raised.value.diagnostics] == ["evaluation-differs"]


def test_differences_are_signed_as_the_first_model_less_the_other() -> None:
    good, bad = answers(["yes"] * ROWS), answers(["no"] * ROWS)
    assert np.sign(compared(good, bad)["exact"].difference) == 1
    assert np.sign(compared(bad, good)["exact"].difference) == -1
