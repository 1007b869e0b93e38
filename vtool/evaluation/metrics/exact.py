"""Exact match: the answer is the reference, but for spaces around it."""

from vtool.evaluation.metrics.metric import Metric


def score(answer: str, reference: str) -> float:
    """Return 1 where the texts are equal, spaces around them aside."""
    return float(answer.strip() == reference.strip())


METRIC = Metric("exact", "the answer is the reference", score, proportion=True)
