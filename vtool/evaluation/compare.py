"""Two models' answers to the same rows, compared row by row."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vtool.diagnostics import Diagnostic, Findings
from vtool.evaluation.asking import AskedRow
from vtool.evaluation.metrics import METRICS
from vtool.evaluation.metrics.metric import Whole
from vtool.evaluation.scoring import NLL, Scored, whole_rows
from vtool.intervals import (
    bootstrap_interval,
    mcnemar,
    paired_bootstrap,
    paired_corpus_bootstrap,
)


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A metric's difference between two models: the first one's mean over rows − the other's."""

    metric: str
    difference: float
    low: float
    high: float
    """The 95 % interval of the difference, the rows being resampled together."""
    p: float | None
    """Two-sided: of McNemar's exact test for a proportion, of the bootstrap for a mean."""
    alone: tuple[int, int] | None = None
    """Rows that the first model alone has right, and that the other alone has, of a proportion."""

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as against.json has it."""
        return asdict(self)


def compare_answers(
    first: tuple[Sequence[AskedRow], Scored], other: tuple[Sequence[AskedRow], Scored]
) -> tuple[MetricDifference, ...]:
    """Compare two models by each metric that both have scores of.

    Raises:
        Findings: `evaluation-differs`, where they were not asked the same rows; fatal.
    """
    (answers, scored), (other_answers, other_scored) = first, other
    if not _same_rows(answers, other_answers):
        one, two = (
            {(each.row, each.question, each.reference) for each in every}
            for every in (answers, other_answers)
        )
        message = f"the models were not asked the same rows: {len(one ^ two)} are of one alone"
        help = "give both the same settings of rows, such as data.max_length"
        raise Findings(Diagnostic("evaluation-differs", message, help), fatal=True)
    proportions = {one.metric for one in scored.scores if one.right is not None}
    found = [
        _of_whole(name, whole, answers, other_answers)
        if (whole := _whole(name)) is not None
        else _of_metric(name, values, other_scored.of_rows[name], proportion=name in proportions)
        for name, values in scored.of_rows.items()
        if name in other_scored.of_rows
    ]
    if nll := _of_nll(answers, other_answers):
        found.append(nll)
    return tuple(found)


def _same_rows(answers: Sequence[AskedRow], others: Sequence[AskedRow]) -> bool:
    return len(answers) == len(others) and all(
        (one.row, one.question, one.reference) == (two.row, two.question, two.reference)
        for one, two in zip(answers, others, strict=True)
    )


def _of_metric(
    name: str, values: Sequence[float], others: Sequence[float], *, proportion: bool
) -> MetricDifference:
    differences = np.subtract(values, others).tolist()
    low, high, p = paired_bootstrap(differences)
    mean = float(np.mean(differences))
    if not proportion:
        return MetricDifference(name, mean, low, high, p)
    alone = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    return MetricDifference(name, mean, low, high, mcnemar(*alone), alone)


def _whole(name: str) -> Whole | None:
    metric = METRICS.get(name)
    return metric.whole if metric is not None else None


def _of_whole(
    name: str, whole: Whole, answers: Sequence[AskedRow], others: Sequence[AskedRow]
) -> MetricDifference:
    """Compare the scores of all answers together, as they are reported, not the rows' own."""
    first, second = whole_rows(whole, answers), whole_rows(whole, others)
    low, high, p = paired_corpus_bootstrap(first, second, whole.of)
    return MetricDifference(name, whole.of(first.sum(0)) - whole.of(second.sum(0)), low, high, p)


def _of_nll(answers: Sequence[AskedRow], others: Sequence[AskedRow]) -> MetricDifference | None:
    """Return the difference in nats a supervised token; None where an NLL is not a number."""
    pairs = [(one.nll, two.nll) for one, two in zip(answers, others, strict=True)]
    if any(one is None or two is None for one, two in pairs):
        return None
    sums = [(one or 0.0) - (two or 0.0) for one, two in pairs]
    counts = [one.supervised for one in answers]
    low, high = bootstrap_interval(sums, counts)
    return MetricDifference(NLL, sum(sums) / sum(counts), low, high, None)
