"""The metrics of answers, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near, one_of
from vtool.evaluation.metrics import (
    anls,
    bleu,
    boxes,
    choices,
    exact,
    json_fields,
    relaxed,
    rouge,
    token_f1,
)
from vtool.evaluation.metrics.metric import Metric
from vtool.evaluation.metrics.own import own_metric

METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        exact.METRIC,
        token_f1.METRIC,
        anls.METRIC,
        relaxed.METRIC,
        json_fields.METRIC,
        boxes.METRIC,
        bleu.METRIC,
        rouge.METRIC,
    )
}
"""The metrics that need nothing but answers and references; `accuracy` has its choices too."""
METRIC_NAMES = (*METRICS, choices.ACCURACY)


NamedMetrics = Mapping[str, Metric | None]
"""Metrics by the names that they are asked for by; None: `accuracy`, which needs its choices."""


@dataclass(frozen=True, slots=True)
class ChosenMetrics:
    """The metrics of an evaluation, and the findings about them."""

    metrics: tuple[Metric, ...]
    choices: tuple[str, ...] = ()
    """The choices of `accuracy`, if it is one of them."""
    notes: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


def named_metrics(asked: Sequence[str]) -> NamedMetrics:
    """Return the metrics of these names, before anything is asked.

    Args:
        asked: names, or `FILE.py:function`.

    Raises:
        Findings: `unknown-choice`, `extra-not-installed`, `metric-failed`; fatal.
    """
    found: dict[str, Metric | None] = {}
    for name in asked:
        if name == choices.ACCURACY:
            found[name] = None
        elif ".py:" in name:
            found[name] = own_metric(name)
        elif name in METRICS:
            found[name] = _installed(METRICS[name])
        else:
            near_by = did_you_mean(near(name, METRIC_NAMES))
            help = near_by or f"take {one_of(METRIC_NAMES)}, or FILE.py:function"
            message = f"--metric: there is no metric {name}"
            raise Findings(Diagnostic("unknown-choice", message, help), fatal=True)
    return found


def metrics_for(
    named: NamedMetrics, wanted: Sequence[str], references: Sequence[str]
) -> ChosenMetrics:
    """Return the metrics of an evaluation, `exact` first.

    Args:
        named: what was asked for; without any, they are chosen by the references.
        wanted: the choices of `accuracy`; none: those that the references surely are of.
        references: of all rows.
    """
    notes: list[str] = []
    findings: list[Diagnostic] = []
    found = [METRICS["exact"]]
    own = tuple(dict.fromkeys(wanted)) or choices.found_in(references)
    if not named:
        fitting = [each for each in METRICS.values() if each.fits and each.fits(references)]
        found += fitting
        notes += [f"{each.name} is scored: every reference is of that kind" for each in fitting]
    found += [each for each in named.values() if each is not None and each not in found]
    if choices.ACCURACY in named or wanted or (not named and len(found) == 1 and own):
        if own:
            found.append(choices.accuracy(own))
        else:
            message = "--metric accuracy: which choices there are is not sure from the rows"
            help = "name them: --choices A,B,C; answers are kept, and not asked again"
            findings.append(Diagnostic("unknown-choice", message, help))
        if own and not wanted:
            notes.append(f"accuracy: the {len(own)} choices are the references")
        there = {choices.choice_of(reference, own) for reference in references}
        if absent := [each for each in own if each not in there]:
            notes.append(f"no row's reference is the choice {', '.join(absent)}")
    else:
        own = ()
    return ChosenMetrics(tuple(found), own, tuple(notes), tuple(findings))


def _installed(metric: Metric) -> Metric:
    if metric.needs is not None and find_spec(metric.needs[0]) is None:
        package, extra = metric.needs
        message = f"--metric {metric.name} needs {package}, which is not installed"
        help = f"pip install 'vtool[{extra}]'"
        raise Findings(Diagnostic("extra-not-installed", message, help), fatal=True)
    return metric


__all__ = [
    "METRICS",
    "METRIC_NAMES",
    "ChosenMetrics",
    "Metric",
    "NamedMetrics",
    "metrics_for",
    "named_metrics",
]
