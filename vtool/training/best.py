"""The best step so far by a score of the validation rows, and when there is no better one to come.

Kept in every checkpoint, so that a resumed run knows what it has seen.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import SharedFindings


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a score, and the step that had it."""

    metric: str
    mode: str
    value: float
    step: int

    def in_words(self) -> str:
        """Return the step and its score."""
        return f"step {self.step} ({self.metric} {self.value:.4f})"


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The evaluations of a run, as far as it has to remember them."""

    best: Best | None = None
    """The checkpoint that is kept and exported (`checkpoint.keep_best`)."""
    reference: Best | None = None
    """The evaluation that a later one must be better than (`evaluation.early_stopping`)."""
    waited: int = 0
    """The evaluations since then."""
    stopped: bool = False
    """True once early stopping has ended the run."""

    @staticmethod
    def of(kept: Mapping[str, Any] | None) -> "BestSoFar":
        """Return the marks that a checkpoint has as JSON; none of an older vtool."""
        if kept is None:
            return BestSoFar()
        best, reference = (
            Best(**kept[name]) if kept[name] is not None else None for name in ("best", "reference")
        )
        return BestSoFar(best, reference, kept["waited"], kept["stopped"])

    def as_dict(self) -> dict[str, Any]:
        """Return the marks as JSON."""
        return asdict(self)

    def extended(self) -> "BestSoFar":
        """Return the marks of a run whose end was moved: it waits anew."""
        return replace(self, waited=0, stopped=False)


def update_best(marks: BestSoFar, run: Run, step: int, scores: Mapping[str, float]) -> BestSoFar:
    """Return the marks after an evaluation.

    Args:
        marks: from before.
        run: says what is kept, and when it ends.
        step: after which it was evaluated.
        scores: by their names in metrics.jsonl.
    """
    if (keep := run.checkpoint.keep_best) is not None:
        found = Best(keep.metric, keep.direction, scores[keep.metric], step)
        if _is_better(found, marks.best):
            marks = replace(marks, best=found)
    if (early := run.evaluation.early_stopping) is not None:
        found = Best(early.metric, early.direction, scores[early.metric], step)
        if _is_better(found, marks.reference, early.min_delta):
            marks = replace(marks, reference=found, waited=0)
        else:
            waited = marks.waited + 1
            marks = replace(marks, waited=waited, stopped=waited >= early.patience)
    return marks


def _is_better(found: Best, before: Best | None, by: float = 0.0) -> bool:
    """Return whether a score is better, by more than `by`; one that is no number never is."""
    if not math.isfinite(found.value):
        return False
    if before is None or (before.metric, before.mode) != (found.metric, found.mode):
        return True
    gain = found.value - before.value
    return (gain if found.mode == "max" else -gain) > by


def check_metrics(run: Run, sources: tuple[str, ...]) -> None:
    """Refuse a score of a source that the validation rows do not have.

    Args:
        run: names the scores.
        sources: the names of those rows' sources; a single one has no scores of its own.

    Raises:
        SharedFindings: `metric-not-computed`.
    """
    known = sources if len(sources) > 1 else ()
    asked = {
        "checkpoint.keep_best.metric": run.checkpoint.keep_best,
        "evaluation.early_stopping.metric": run.evaluation.early_stopping,
    }
    findings = []
    for name, settings in asked.items():
        metric, _, source = settings.metric.partition("/") if settings is not None else ("", "", "")
        if source and source not in known:
            message = f"{name} is {metric}/{source}, and the validation rows have no such source"
            help = f"sources are {', '.join(known)}" if known else f"set {name}={metric}"
            findings.append(Diagnostic("metric-not-computed", message, help, name))
    if findings:
        raise SharedFindings(findings)
