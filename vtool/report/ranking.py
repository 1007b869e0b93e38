"""Runs in the order of their validation scores: what they are compared and chosen by.

Never by the test rows: the best of many runs by those has been fitted to them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vtool.report.run_files import EvaluationLine, RunFiles, number_in

OF_TEST = ("Test exact match", "Test NLL")
"""Headline numbers that runs are not compared by, where they have validation scores."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One run's place."""

    position: int
    """Among the runs as they were given."""
    values: tuple[str, ...]
    """The settings in which runs differ."""
    scores: EvaluationLine | None
    best: bool


def validation_of(run: RunFiles) -> EvaluationLine | None:
    """Return the validation scores of the step that is exported: the best kept one, or the last.

    None where no validation rows were scored, or the run has not finished.
    """
    best = (run.result or {}).get("best")
    step = number_in(best, "step") if isinstance(best, dict) and best.get("exported") else None
    scored = [each for each in run.evaluations if step is None or each.step == step]
    return scored[-1] if scored and run.result is not None else None


def order(scores: Sequence[EvaluationLine | None]) -> list[int]:
    """Return the places of scores from the lowest NLL on; those without one last, as they came."""
    return sorted(range(len(scores)), key=lambda place: _key(scores[place]))


def _key(scores: EvaluationLine | None) -> float:
    nll = scores.nll if scores is not None else None
    return nll if nll is not None and math.isfinite(nll) else math.inf


def rank(runs: Sequence[RunFiles], own: Sequence[str]) -> tuple[tuple[str, ...], list[Ranked]]:
    """Return the settings in which runs differ, and the runs, best first; none without scores.

    Args:
        runs: to compare.
        own: settings that are of each run alone.
    """
    scores = [validation_of(run) for run in runs]
    if all(math.isinf(_key(each)) for each in scores):
        return (), []
    settings = [{each.key: each.value for each in run.settings} for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each if key not in own)
    differ = tuple(key for key in keys if len({each.get(key) for each in settings}) > 1)
    places = order(scores)
    return differ, [
        Ranked(
            place,
            tuple(settings[place].get(key, "—") for key in differ),
            scores[place],
            place == places[0],
        )
        for place in places
    ]
