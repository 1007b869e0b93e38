"""The scores of answers: each metric with its interval, of all rows and of each group."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.diagnostics import Diagnostic
from vtool.evaluation.asking import AskedRow
from vtool.evaluation.metrics import Metric
from vtool.evaluation.metrics.choices import ACCURACY, choice_of
from vtool.evaluation.metrics.metric import Whole
from vtool.evaluation.metrics.own import described
from vtool.intervals import bootstrap_interval, corpus_bootstrap, wilson_interval

_LISTED = 5
_MOST_GROUPS = 50
NLL = "nll"


@dataclass(frozen=True, slots=True)
class MetricScore:
    """A metric's score over rows, with its 95 % interval."""

    metric: str
    says: str
    value: float
    low: float
    high: float
    rows: int
    right: int | None = None
    """Rows that are right, of a proportion."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of all answers: overall, of each row and of each group, with findings."""

    scores: tuple[MetricScore, ...]
    of_rows: Mapping[str, tuple[float, ...]]
    """Each metric's score of each row, in their order."""
    groups: Mapping[str, Mapping[str, tuple[MetricScore, ...]]]
    """Scores by the key that groups rows, and its value."""
    findings: tuple[Diagnostic, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as result.json has them."""
        return {
            "scores": [asdict(score) for score in self.scores],
            "groups": {
                by: {name: [asdict(score) for score in own] for name, own in groups.items()}
                for by, groups in self.groups.items()
            },
            "notes": list(self.notes),
        }


def score_answers(
    answers: Sequence[AskedRow],
    metrics: Sequence[Metric],
    choices: Sequence[str] = (),
    by: tuple[str, Mapping[int, str]] | None = None,
) -> Scored:
    """Score answers.

    Args:
        answers: of all rows.
        metrics: a metric that fails has a finding, and no score.
        choices: those of the metric `accuracy`, if it is one of these.
        by: a key of rows, and its value for each.
    """
    findings: list[Diagnostic] = []
    rows: dict[str, tuple[float, ...]] = {}
    for metric in metrics:
        refused = _refused(metric, answers)
        if refused:
            findings.append(_not_scorable(metric, refused, answers))
        if len(refused) == len(answers):  # a score of 0 would blame the model
            continue
        found = _rows_of(metric, answers)
        if isinstance(found, Diagnostic):
            findings.append(found)
        else:
            rows[metric.name] = found
    known = [metric for metric in metrics if metric.name in rows]

    def scores(places: Sequence[int]) -> tuple[MetricScore, ...]:
        own = [_score(metric, answers, rows[metric.name], places) for metric in known]
        nll = _nll([answers[place] for place in places])
        return (*own, nll) if nll else tuple(own)

    groups: dict[str, dict[str, tuple[MetricScore, ...]]] = {}
    notes = [*_notes(answers, choices if ACCURACY in rows else ()), *_remarks(known, answers)]
    tellers = [("source", {one.index: one.source for one in answers}), *([by] if by else [])]
    for name, values in tellers:
        places: dict[str, list[int]] = {}
        for place, one in enumerate(answers):
            places.setdefault(values[one.index], []).append(place)
        if len(places) > 1 or name != "source":
            largest = sorted(places, key=lambda value: (-len(places[value]), value))[:_MOST_GROUPS]
            groups[name] = {value: scores(places[value]) for value in sorted(largest)}
            if len(places) > _MOST_GROUPS:
                notes.append(
                    f"by {name}: the {_MOST_GROUPS} values with the most rows, of {len(places):,}"
                )
    return Scored(
        scores(range(len(answers))),
        rows,
        groups,
        (*findings, *_stopped(answers), *_no_numbers(answers)),
        tuple(notes),
    )


def _rows_of(metric: Metric, answers: Sequence[AskedRow]) -> tuple[float, ...] | Diagnostic:
    """Return a metric's score of each row, or the finding of the first that it fails on."""
    found: list[float] = []
    for one in answers:
        try:
            value = metric.score(one.answer, one.reference)
        except Exception as error:  # a function of the user's
            file = getattr(getattr(metric.score, "__code__", None), "co_filename", None)
            what = f"raises {described(error, Path(file) if file else None)}"
            return _failed(metric, one, what)
        if not isinstance(value, Real) or not math.isfinite(value):
            return _failed(metric, one, f"returns {value!r:.80}, and not a number")
        found.append(float(value))
    return tuple(found)


def _failed(metric: Metric, one: AskedRow, what: str) -> Diagnostic:
    message = f"{one.row}: the metric {metric.name} {what}; it has no score"
    return Diagnostic("metric-failed", message)


def _refused(metric: Metric, answers: Sequence[AskedRow]) -> list[AskedRow]:
    """Return the rows to whose references the metric cannot score any answer."""
    return [one for one in answers if metric.refuses is not None and metric.refuses(one.reference)]


def _not_scorable(
    metric: Metric, rows: Sequence[AskedRow], answers: Sequence[AskedRow]
) -> Diagnostic:
    listed = ", ".join(f"{one.row} ({one.reference[:40]!r})" for one in rows[:_LISTED])
    more = f", and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    if metric.name == ACCURACY:
        what, help = "are none of the choices", "name every choice that the rows have: --choices"
    else:
        what = f"are nothing that {metric.name} can score"
        help = f"fix these rows' answers, or leave out --metric {metric.name}"
    message = f"the references of {len(rows)} of {len(answers)} rows {what}: {listed}{more}"
    if len(rows) == len(answers):
        message += f"; {metric.name} has no score"
    return Diagnostic("reference-not-scorable", message, help)


def _score(
    metric: Metric, answers: Sequence[AskedRow], rows: Sequence[float], places: Sequence[int]
) -> MetricScore:
    values = [rows[place] for place in places]
    if metric.whole is not None:
        texts = [answers[place] for place in places]
        sums = whole_rows(metric.whole, texts)
        low, high = corpus_bootstrap(sums, metric.whole.of)
        return MetricScore(
            metric.name, metric.says, metric.whole.of(sums.sum(0)), low, high, len(values)
        )
    mean = math.fsum(values) / len(values)
    if metric.proportion:
        right = round(sum(values))
        low, high = wilson_interval(right, len(values))
        return MetricScore(metric.name, metric.says, mean, low, high, len(values), right)
    low, high = bootstrap_interval(values)
    return MetricScore(metric.name, metric.says, mean, low, high, len(values))


def _remarks(metrics: Sequence[Metric], answers: Sequence[AskedRow]) -> Iterator[str]:
    """Yield the metrics' remarks on their scores of all answers together."""
    for metric in metrics:
        if metric.whole is not None:
            remark = metric.whole.remark(whole_rows(metric.whole, answers).sum(0))
            if remark is not None:
                yield f"{metric.name}: {remark}"


def whole_rows(whole: Whole, answers: Sequence[AskedRow]) -> NDArray[np.float64]:
    """Return the terms that each answer adds to the sums of a corpus score."""
    return whole.rows([one.answer for one in answers], [one.reference for one in answers])


def _nll(answers: Sequence[AskedRow]) -> MetricScore | None:
    """Return the NLL a supervised token; None where that of a row is not a number."""
    if any(one.nll is None for one in answers):
        return None
    sums = [one.nll or 0.0 for one in answers]
    counts = [one.supervised for one in answers]
    low, high = bootstrap_interval(sums, counts)
    value = math.fsum(sums) / sum(counts)
    return MetricScore(
        NLL, "nats a supervised token, less is better", value, low, high, len(answers)
    )


def _stopped(answers: Sequence[AskedRow]) -> Iterator[Diagnostic]:
    stopped = [one for one in answers if one.stopped]
    if stopped:
        longest = max(one.tokens for one in stopped)
        yield Diagnostic(
            "answer-stopped",
            f"{len(stopped)} of {len(answers)} answers were stopped at {longest} tokens"
            f" ({stopped[0].row}, …)",
        )


def _no_numbers(answers: Sequence[AskedRow]) -> Iterator[Diagnostic]:
    rows = [one for one in answers if one.nll is None]
    if rows:
        message = (
            f"the NLL of {len(rows)} of {len(answers)} rows is infinite or not a number"
            f" ({rows[0].row}, …): it has no mean"
        )
        help = "look at the model's weights: vtool load-check FOLDER"
        yield Diagnostic("nonfinite-loss", message, help)


def _notes(answers: Sequence[AskedRow], choices: Sequence[str]) -> Iterator[str]:
    """Yield notes on the answers that no score shows: none of the choices, or all the same."""
    if choices:
        none = [one for one in answers if choice_of(one.answer, choices) is None]
        if none:
            yield (
                f"{len(none)} of {len(answers)} answers are none of the {len(choices)} choices, and"
                f" count as wrong: {none[0].row} has {none[0].answer[:60]!r}"
            )
    same = {one.answer for one in answers}
    if len(same) == 1 and len({one.reference for one in answers}) > 1:
        yield f"every answer is the same: {next(iter(same))[:60]!r}"
