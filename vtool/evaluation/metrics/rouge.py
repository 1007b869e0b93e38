"""ROUGE-L, by rouge-score."""

from functools import cache
from typing import Any

from vtool.evaluation.metrics.metric import Metric


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False)


def score(answer: str, reference: str) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004), without stemming."""
    value: float = _scorer().score(reference, answer)["rougeL"].fmeasure
    return value


METRIC = Metric(
    "rouge",
    "ROUGE-L, F1 of the longest common subsequence",
    score,
    needs=("rouge_score", "metrics"),
)
