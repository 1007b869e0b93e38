"""Rules about the best checkpoint, and about ending a run before its last step."""

from collections.abc import Iterator

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.config.schema.training import SCORES, Score
from vtool.diagnostics import Diagnostic, Rule
from vtool.diagnostics.near_miss import did_you_mean, near


def _asked(run: Run) -> Iterator[tuple[str, Score]]:
    """Yield the settings that a score of the validation rows decides, where they are given."""
    if run.checkpoint.keep_best is not None:
        yield "checkpoint.keep_best", run.checkpoint.keep_best
    if run.evaluation.early_stopping is not None:
        yield "evaluation.early_stopping", run.evaluation.early_stopping


@settings_rule(
    Rule(
        name="best-without-validation",
        code="VT248",
        summary="checkpoint.keep_best or evaluation.early_stopping, and nothing is evaluated.",
        why=(
            "The best step is found by the validation rows, as often as they are scored. The test"
            " rows must not choose it: their score would no longer be that of unseen rows."
        ),
        bad="evaluation.early_stopping.patience=2 evaluation.every_steps=null",
        good="evaluation.early_stopping.patience=2 evaluation.every_steps=100",
        fix="Give data.validation or data.split.validation, and evaluation.every_steps.",
    ),
)
def best_without_validation(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that validation rows are scored during the run, for whatever a score decides."""
    rows = run.data.validation or "validation" in run.data.split.shares
    for name, _ in _asked(run):
        if not rows:
            missing, help = (
                "there are no validation rows",
                "give data.validation, or hold some of data.train back: data.split.validation=0.1",
            )
        elif run.evaluation.every_steps is None:
            missing, help = (
                "evaluation.every_steps is null: the rows are scored at the end alone",
                "set evaluation.every_steps=100",
            )
        else:
            continue
        message = f"{name} is decided by a score of the validation rows, and {missing}"
        yield Diagnostic("best-without-validation", message, help, name, origins.near(name))


@settings_rule(
    Rule(
        name="metric-not-computed",
        code="VT249",
        summary="checkpoint.keep_best or evaluation.early_stopping names no score there is.",
        why="Nothing would ever be the best, and the setting be as if it were not there.",
        bad="checkpoint.keep_best.metric=accuracy evaluation.every_steps=100",
        good="checkpoint.keep_best.metric=validation_exact_match evaluation.every_steps=100",
        fix="Name a score that metrics.jsonl has of the validation rows.",
    ),
)
def metric_not_computed(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the score is one that an evaluation computes.

    Whether a source of that name exists is known only once its rows are read."""
    for group, settings in _asked(run):
        name, metric = f"{group}.metric", settings.metric
        if metric.partition("/")[0] in SCORES:
            continue
        what = (
            "is of the test rows, which must not choose"
            if metric.startswith("test_")
            else "is no score of an evaluation"
        )
        yield Diagnostic(
            "metric-not-computed",
            f"{name} is {metric}, which {what}",
            did_you_mean(near(metric, SCORES)) or f"scores are {', '.join(SCORES)}",
            name,
            origins.near(name),
        )
