"""The command `vtool evaluate MODEL|RUN ROWS|RECIPE [KEY=VALUE]…`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vtool.cli import complete
from vtool.cli.formats import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtool.evaluation.compare import MetricDifference
    from vtool.evaluation.run import Evaluated
    from vtool.evaluation.scoring import MetricScore


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.runs,
            metavar="MODEL|RUN",
            help="A run's folder or name, an export, an adapter, or a model.",
        ),
    ],
    rows: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.rows_or_recipe,
            metavar="ROWS|RECIPE",
            help="A file or a folder of rows, or a recipe's test split.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.overrides,
            metavar="KEY=VALUE",
            help="Settings, such as data.image.max_pixels=N.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            autocompletion=complete.metrics,
            help=(
                "exact, accuracy, f1, anls, relaxed, json, iou, bleu, rouge or"
                " FILE.py:function; may be repeated. Default: those that fit the"
                " reference answers."
            ),
        ),
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="The answers to choose from, for --metric accuracy."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Also score the rows in groups, by the value of this key of each row.",
        ),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(metavar="T", min=0.0, help="Sample answers at this temperature; 0: greedy."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed for --sample.")] = 0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Most tokens of an answer. Default: from the longest reference answer.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of rows in a batch; it does not change the answers."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Evaluate only the first N rows.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.runs,
            metavar="MODEL|RUN",
            help="Evaluate another model on the same rows, and compare the two.",
        ),
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of processes to share the rows between."),
    ] = None,
    engine: Annotated[
        Literal["vllm"] | None,
        typer.Option("--with", help="Generate the answers with vLLM instead of transformers."),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of an adapter's base model, if it was moved."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for the results. Default: evaluations/MODEL-ROWS."
        ),
    ] = None,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Score a model's answers to rows, with 95 % intervals.

    If it was stopped, the same command resumes it.
    """
    from vtool.cli.common import begin_with_training, exit_on_findings, print_and_exit
    from vtool.diagnostics.printable import printable
    from vtool.diagnostics.render import MACHINE
    from vtool.diagnostics.result import Result

    stopped = "stopped; the same command resumes with the rows that have no answer yet"
    with exit_on_findings("evaluate", model, format, stopped):
        _check_settings(overrides or ())
        begin_with_training("vtool evaluate")
        from dataclasses import replace

        from vtool.cli.evaluate_ranks import evaluate_on_ranks
        from vtool.evaluation.run import EvaluationRequest

        request = EvaluationRequest(
            model,
            rows,
            tuple(overrides or ()),
            tuple(metric or ()),
            _choices(choices),
            by,
            sample,
            seed,
            max_new_tokens,
            batch,
            limit,
            base,
            to,
            engine,
        )
        requests = [request]
        if against is not None:
            requests.append(replace(request, model=against, base=None, folder=None))
        asked = evaluate_on_ranks(requests, nproc)
        if not asked:  # a rank that is not the first
            return
        compared = compare_evaluations(*asked) if len(asked) == 2 else ()
        pages = [write_evaluation_page(each) for each in asked]
        if format not in MACHINE:
            for each, page in zip(asked, pages, strict=True):
                print_scores(each)
                typer.echo(printable(f"report: {page}"))
            if compared:
                print_comparison(compared, model, str(against))
        results = []
        for name, each in zip((model, str(against)), asked, strict=False):
            made = Result.of_findings(name, each.scored.findings)
            details = {"evaluation": each.scored.as_dict()}
            if each is asked[0] and compared:
                details["against"] = {
                    "model": str(against),
                    "compared": [one.as_dict() for one in compared],
                }
            results.append(Result(made.subject, made.verdict, made.checks, made.findings, details))
        print_and_exit(results, "evaluate", format)


_OPTIONS = ("metric", "choices", "by", "sample", "limit", "batch", "against", "base", "to")


def _check_settings(given: "Sequence[str]") -> None:
    """Refuse an option that is written as a setting.

    Raises:
        Findings: `unknown-key`, fatal.
    """
    import shlex

    from vtool.diagnostics import Diagnostic, Findings

    for one in given:
        name, _, value = one.partition("=")
        if name in _OPTIONS:
            message = f"`{name}` is an option of vtool evaluate, and no setting"
            help = f"write --{name} {shlex.quote(value)}"
            raise Findings(Diagnostic("unknown-key", message, help), fatal=True)


def compare_evaluations(first: "Evaluated", other: "Evaluated") -> "tuple[MetricDifference, ...]":
    """Compare two evaluations of the same rows, and write the result next to the first one's."""
    import os

    from vtool.evaluation.compare import compare_answers

    found = compare_answers((first.answers, first.scored), (other.answers, other.scored))
    place = os.path.relpath(other.store.path, first.store.path)
    named = {"model": str(other.subject.export.folder), "evaluation": place}
    first.store.keep_comparison(named | {"compared": [one.as_dict() for one in found]})
    return found


def write_evaluation_page(done: "Evaluated") -> str:
    """Write the page of an evaluation, and return its path, or why there is none."""
    import shlex

    from vtool.report.evaluation import write_evaluation

    try:
        return shlex.quote(str(write_evaluation(done.store.path)))
    except OSError as error:  # the scores are written by now
        retry = f"vtool report {shlex.quote(str(done.store.path))}"
        return f"not written: {error}; then: {retry}"


def print_comparison(compared: "Sequence[MetricDifference]", model: str, against: str) -> None:
    """Print how two models differ on the same rows."""
    from vtool.diagnostics.printable import printable

    lines = [f"{model} compared with {against}, row by row (95 % intervals):"]
    lines += score_table([(one.metric, *_difference(one)) for one in compared], "  ")
    for line in lines:
        typer.echo(printable(line))


def _difference(one: "MetricDifference") -> tuple[str, str, str]:
    """Return a difference, its interval, and the test of whether it is more than chance."""
    if one.alone is None:
        tested = "" if one.p is None else f"p {_p(one.p)} (bootstrap)"
        return f"{one.difference:+.4f}", f"[{one.low:+.4f}, {one.high:+.4f}]", tested
    first, other = one.alone
    tested = f"right in it alone {first}, in the other alone {other}: p {_p(one.p)} (McNemar)"
    return f"{one.difference:+.2%}", f"[{one.low:+.2%}, {one.high:+.2%}]", tested


def _p(value: float | None) -> str:
    return "< 0.0001" if value is not None and value < 1e-4 else f"{value:.4f}"


def _choices(given: str | None) -> tuple[str, ...]:
    """Return choices that are given as A,B,C, or as a list of JSON where one has a comma."""
    import json

    if given is None:
        return ()
    try:
        named = json.loads(given)
    except ValueError:
        named = None
    found = named if isinstance(named, list) else given.split(",")
    return tuple(str(one).strip() for one in found if str(one).strip())


def print_scores(done: "Evaluated") -> None:
    """Print how rows were asked, every score, those of groups, and where the answers are."""
    from vtool.diagnostics.printable import printable
    from vtool.evaluation.progress import rounded

    scored, rows = done.scored, len(done.answers)
    rate = f", {rounded(done.asked / done.seconds)} rows a second" if done.asked else ""
    lines = [f"{done.subject.in_words()}: {rows} rows, {done.how}{rate}"]
    counts = {
        one.metric: f"{one.right} of {one.rows}: " for one in scored.scores if one.right is not None
    }
    lines += score_table(
        [
            (one.metric, *_value(one), counts.get(one.metric, "") + one.says)
            for one in scored.scores
        ],
        "  ",
    )
    for by, groups in scored.groups.items():
        names = [one.metric for one in scored.scores]
        cells = [[f"by {by}", "rows", *names]]
        for name, own in groups.items():
            values = {one.metric: " ".join(_value(one)) for one in own}
            count = str(own[0].rows)
            cells.append([name or "(none)", count, *(values.get(each, "") for each in names)])
        lines += score_table(cells, "  ")
    lines += [f"  note: {note}" for note in scored.notes]
    lines.append(f"predictions: {done.store.predictions}")
    for line in lines:
        typer.echo(printable(line))


def score_table(rows: "Sequence[Sequence[str]]", indent: str) -> list[str]:
    """Return a line for each row, its cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _value(one: "MetricScore") -> tuple[str, str]:
    """Return a score and its interval."""
    if one.right is None:
        return f"{one.value:.4f}", f"[{one.low:.4f}, {one.high:.4f}]"
    return f"{one.value:.2%}", f"[{one.low:.2%}, {one.high:.2%}]"
