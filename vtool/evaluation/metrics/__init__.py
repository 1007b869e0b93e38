"""The metrics of answers, by name."""

from collections.abc import Sequence
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
NAMES = (*METRICS, choices.NAME)


def metrics_for(
    asked: Sequence[str], wanted: Sequence[str], references: Sequence[str]
) -> tuple[list[Metric], list[str]]:
    """Return the metrics of an evaluation, `exact` first, and sentences on those chosen here.

    Args:
        asked: names, or `FILE.py:function`; without any, they are chosen by the references.
        wanted: the choices of `accuracy`; none: those that the references surely are of.
        references: of all rows.

    Raises:
        Findings: `unknown-choice`, `extra-not-installed`, `metric-failed`; fatal.
    """
    said: list[str] = []
    found = [METRICS["exact"]]
    names = list(dict.fromkeys(asked)) or [
        name for name, each in METRICS.items() if each.fits and each.fits(references)
    ]
    if not asked and names:
        said = [f"metric {', '.join(names)}: every reference is of that kind"]
    certain = not asked and not names and choices.found_in(references)
    if (wanted or certain) and choices.NAME not in names:
        names.append(choices.NAME)
    for name in names:
        if name == choices.NAME:
            own = tuple(dict.fromkeys(wanted)) or choices.found_in(references)
            if not own:
                message = "--metric accuracy: which choices there are is not sure from the rows"
                raise _unknown(message, "name them: --choices A,B,C")
            if not wanted:
                said.append(f"metric accuracy: the {len(own)} choices are the references")
            found.append(choices.accuracy(own))
        elif name.rpartition(":")[0].endswith(".py"):
            found.append(own_metric(name))
        elif name not in METRICS:
            help = did_you_mean(near(name, NAMES)) or f"take {one_of(NAMES)}, or FILE.py:function"
            raise _unknown(f"--metric: there is no metric {name}", help)
        elif name != "exact":
            found.append(_installed(METRICS[name]))
    return found, said


def _installed(metric: Metric) -> Metric:
    if metric.needs is not None and find_spec(metric.needs[0]) is None:
        package, extra = metric.needs
        message = f"--metric {metric.name} needs {package}, which is not installed"
        help = f"pip install 'vtool[{extra}]'"
        raise Findings(Diagnostic("extra-not-installed", message, help), fatal=True)
    return metric


def _unknown(message: str, help: str) -> Findings:
    return Findings(Diagnostic("unknown-choice", message, help), fatal=True)


__all__ = ["METRICS", "NAMES", "Metric", "metrics_for"]
