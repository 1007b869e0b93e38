"""Remarks on a run's numbers: spikes of its loss, one answer to every row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtool.report.answers import short
from vtool.report.run_files import RunFiles
from vtool.report.words import in_words
from vtool.spikes import find_spikes
from vtool.words import plural

_MOST = 20
_FEWEST_ANSWERS = 10


@dataclass(frozen=True, slots=True)
class SpikeLine:
    """A spike, in words."""

    steps: str
    loss: str
    usual: str
    rows: str
    """Names of the rows in the step of the highest loss."""


def spike_lines(run: RunFiles) -> list[SpikeLine]:
    """Return the spikes of the loss, with their rows where the run has ended and named them."""
    losses = {step.step: step.loss for step in run.steps if step.loss is not None}
    spikes = sorted(find_spikes(sorted(losses.items())), key=lambda spike: -spike.times)[:_MOST]
    named = (run.result or {}).get("spikes")
    rows: Mapping[Any, Any] = {
        each.get("step"): each.get("rows")
        for each in (named if isinstance(named, list) else ())
        if isinstance(each, dict)
    }
    return [
        SpikeLine(
            f"{spike.step:,}"
            + (f" (of {spike.first:,} to {spike.last:,})" if spike.first < spike.last else ""),
            in_words(spike.loss),
            in_words(spike.usual),
            _names(rows.get(spike.step)),
        )
        for spike in sorted(spikes, key=lambda spike: spike.step)
    ]


def _names(rows: Any) -> str:
    if not isinstance(rows, list):
        return "not known until the run has finished"
    return ", ".join(map(str, rows))


def remarks(run: RunFiles) -> list[str]:
    """Return in sentences what stands out."""
    sentences = []
    spikes = spike_lines(run)
    if spikes:
        steps = ", ".join(spike.steps for spike in spikes[:8])
        more = f" and {len(spikes) - 8} more" if len(spikes) > 8 else ""
        sentences.append(
            f"The loss spikes in {plural(len(spikes), 'place')}: step {steps}{more}. The rows are"
            " below the curves."
        )
    answers = {answer.answer for answer in run.predictions}
    expected = {answer.reference for answer in run.predictions}
    if len(run.predictions) >= _FEWEST_ANSWERS and len(answers) == 1 and len(expected) > 1:
        (answer,) = answers
        sentences.append(
            f"All {len(run.predictions):,} test rows have one answer, “{short(answer)}”, where"
            f" {len(expected):,} different ones are expected."
        )
    return sentences
