"""Relaxed accuracy: a number may be 5 % off."""

import math

from vtool.evaluation.metrics.metric import Metric

_TOLERANCE = 0.05


def _number(text: str) -> float | None:
    stripped = text.strip()
    percent = stripped.endswith("%")
    try:
        value = float(stripped.removesuffix("%").replace(",", ""))
    except ValueError:
        return None
    return (value / 100 if percent else value) if math.isfinite(value) else None


def score(answer: str, reference: str) -> float:
    """Return 1 where a number is within 5 % of the reference, or a text is equal but for case.

    Methani et al. 2020, arXiv 1909.00997 (PlotQA), as used by Masry et al. 2022, arXiv 2203.10244
    (ChartQA): |answer − reference| / |reference| ≤ 0.05. Of a reference of 0 nothing may be off.
    """
    given, wanted = _number(answer), _number(reference)
    if given is None or wanted is None:
        return float(answer.strip().casefold() == reference.strip().casefold())
    if not wanted:
        return float(given == 0)
    return float(abs(given - wanted) / abs(wanted) <= _TOLERANCE)


METRIC = Metric("relaxed", "equal, or a number within 5 %", score, proportion=True)
