"""Scores of all answers, and what is found of them on the way."""

from dataclasses import replace

from tests.evaluation.test_compare import answers
from vtool.evaluation.scoring import score_answers


def test_answers_that_the_limit_of_tokens_has_stopped_are_one_finding() -> None:
    given = answers(["yes"] * 4)
    assert score_answers(given, ()).findings == ()
    given[1:3] = (replace(one, stopped=True, tokens=16) for one in given[1:3])
    (finding,) = score_answers(given, ()).findings
    assert finding.rule == "answer-stopped"
    assert finding.message == "2 of 4 answers were stopped at 16 tokens (rows:1, …)"
