"""Remarks on a run's numbers, which do not end it: spikes, one answer to every row."""

import json
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.evaluation.evaluate import Scores
from vtool.spikes import FEWEST, find_spikes
from vtool.training.metrics import read_metric_lines
from vtool.training.session import Session

FEWEST_ANSWERS = 10
"""Rows below which equal answers may be chance."""
_MOST_SPIKES, _MOST_ROWS = 20, 64


def spikes_of(session: Session) -> list[dict[str, Any]] | None:
    """Return the spikes of the loss, the highest ones with their rows; None of too few steps.

    Rank 0 calls it: it has the metrics.
    """
    losses: dict[int, float] = {}
    for line in read_metric_lines(session.folder.metrics):
        try:
            found = json.loads(line)
            losses[int(found["step"])] = float(found["loss"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # of an evaluation, or damaged: another check's
    if len(losses) <= FEWEST:
        return None
    spikes = sorted(find_spikes(sorted(losses.items())), key=lambda spike: -spike.times)
    return sorted(
        (
            {
                "step": spike.step,
                "loss": spike.loss,
                "usual": spike.usual,
                "times": spike.times,
                "steps": [spike.first, spike.last],
                "rows": _rows(session, spike.step),
            }
            for spike in spikes[:_MOST_SPIKES]
        ),
        key=lambda spike: spike["step"],
    )


def _rows(session: Session, step: int) -> list[str]:
    kept, rows = session.ledgers["train"].kept, session.rows["train"].rows
    return [rows.name(kept[int(place)]) for place in session.plan.step(step)[:_MOST_ROWS]]


def spike_findings(spikes: list[dict[str, Any]]) -> list[Diagnostic]:
    """Return a note of the highest spike, and of how many there are."""
    if not spikes:
        return []
    worst = max(spikes, key=lambda spike: spike["times"])
    others = [str(spike["step"]) for spike in spikes if spike is not worst]
    names = worst["rows"][:8]
    more = f" and {len(worst['rows']) - 8} more" if len(worst["rows"]) > 8 else ""
    message = (
        f"the loss of step {worst['step']} is {worst['loss']:.4g}, where {worst['usual']:.4g} was"
        f" usual; its rows: {', '.join(names)}{more}"
    )
    message += f"; further spikes: step {', '.join(others)}" if others else ""
    return [Diagnostic("loss-spike", message)]


def one_answer(scores: Scores, split: str) -> list[Diagnostic]:
    """Return a finding where all answers to a split's rows are one, and their references differ."""
    answers = {answer.answer for answer in scores.answers}
    expected = {answer.reference for answer in scores.answers}
    if not _can_differ(scores) or len(answers) > 1:
        return []
    (answer,) = answers
    quoted = f"{answer[:80]!r}{' …' if len(answer) > 80 else ''}"
    message = (
        f"all {scores.samples} answers to data.{split} are {quoted}, where {len(expected)}"
        " different ones are expected"
    )
    return [Diagnostic("constant-answer", message)]


def answer_checks(scores: Scores | None) -> dict[str, str]:
    """Return the verdict of `one_answer` where it finds nothing: `passed`, or `not-run`."""
    return {"constant-answer": "passed" if scores and _can_differ(scores) else "not-run"}


def _can_differ(scores: Scores) -> bool:
    """Return whether rows are enough, and different enough, that equal answers say something."""
    return (
        scores.samples >= FEWEST_ANSWERS
        and len({answer.reference for answer in scores.answers}) > 1
    )
