"""Answers to a few validation rows at each evaluation: how they change during a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from vtool.report.answers import short
from vtool.report.images import Picture, Pictures
from vtool.report.run_files import Prediction, RunFiles

_MOST_ROWS = 12
_FIRST, _LAST = 3, 4
"""Answers of a row that are shown where it has more than both together."""


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """An answer that was the same at one evaluation or several in a row."""

    steps: str
    answer: str
    right: bool


@dataclass(frozen=True, slots=True)
class RowOverTime:
    """A validation row and the answers to it."""

    row: str
    question: str
    """Empty where all rows ask the same, which the page says once above them."""
    reference: str
    picture: Picture | None
    has_image: bool
    first: tuple[AnswerSpan, ...]
    left_out: int
    """Answers between the first and the last ones."""
    last: tuple[AnswerSpan, ...]


@dataclass(frozen=True, slots=True)
class OverTime:
    """The rows that were asked at every evaluation."""

    question: str
    evaluations: int
    rows: tuple[RowOverTime, ...]


def over_time(run: RunFiles, pictures: Pictures) -> OverTime | None:
    """Return the answers to the rows of `validation.jsonl`, by row; None where there are none."""
    by_row: dict[str, list[tuple[int, Prediction]]] = {}
    for step, answers in run.asked_again:
        for answer in answers:
            by_row.setdefault(answer.row, []).append((step, answer))
    if not by_row:
        return None
    questions = {answer.question for given in by_row.values() for _, answer in given}
    question = questions.pop() if len(questions) == 1 else ""
    shown = list(by_row.values())[:_MOST_ROWS]
    rows = tuple(_row(run, given, question, pictures) for given in shown)
    return OverTime(question, len({step for step, _ in run.asked_again}), rows)


def _row(
    run: RunFiles, given: Sequence[tuple[int, Prediction]], question: str, pictures: Pictures
) -> RowOverTime:
    _, one = given[-1]
    answers = [
        AnswerSpan(_steps([step for step, _ in group]), short(answer), right)
        for (answer, right), same in groupby(given, lambda each: (each[1].answer, each[1].correct))
        if (group := list(same))
    ]
    cut = len(answers) - _FIRST - _LAST
    return RowOverTime(
        one.row,
        "" if question else short(one.question),
        short(one.reference),
        pictures.embed(run.folder, one.image) if one.image else None,
        one.image is not None,
        tuple(answers[:_FIRST] if cut > 0 else answers),
        max(0, cut),
        tuple(answers[-_LAST:]) if cut > 0 else (),
    )


def _steps(steps: Sequence[int]) -> str:
    first, last = steps[0], steps[-1]
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
