"""The command `vtool plan RECIPE [KEY=VALUE]…`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete
from vtool.cli.formats import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vtool.diagnostics import Diagnostic
    from vtool.diagnostics.result import Result
    from vtool.planning.plan import MemoryPlan


_FIGURES = "`vtool explain RECIPE` has the figures of a shipped recipe's usual model"
"""Help for somebody without the model."""


def plan(
    recipe: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.rows_or_recipe,
            metavar="RECIPE|ROWS",
            help="A recipe's name, a YAML file, or a file or a folder of rows.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.overrides,
            metavar="KEY=VALUE",
            help="Settings that take the place of the recipe's.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=65_536,
            help="Number of GPUs on all machines. Default: launch.nproc.",
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", help="Memory of a GPU; the answer is whether the run fits."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Tokens of a row. Default: data.max_length, or else those of the longest row; with"
            " packing, at most data.micro_batch_tokens.",
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Images in a row. Default: as many as fill three quarters of its tokens; the most"
            " of a row, where rows are measured.",
        ),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            metavar="TFLOPS",
            help="Peak TFLOP/s of a GPU; the answer is the time of a step, and the run's.",
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            metavar="MONEY",
            help="With --peak: price of a GPU-hour; the answer is what the run costs.",
        ),
    ] = None,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Say what each rank of a run will need, and whether a GPU has it: no weights, no GPU.

    Only config.json of the model's folder is read, unless rows have to be measured: those of a
    recipe without data.max_length.
    """
    from vtool.cli.common import exit_on_findings, print_and_exit
    from vtool.diagnostics import Findings
    from vtool.diagnostics.render import MACHINE
    from vtool.diagnostics.result import Result

    _check_numbers(memory, peak, price)
    with exit_on_findings("plan", recipe, format):
        from vtool.cli.common import begin_with_training
        from vtool.config.load import load_run

        try:
            run = load_run(recipe, overrides or []).run
        except Findings as found:
            raise Findings(_of_a_plan(found.diagnostics, recipe), fatal=found.fatal) from found
        begin_with_training("vtool plan")
        from vtool.planning.plan import GIB, PlanQuestion, make_plan

        asked = PlanQuestion(
            gpus or run.launch.nproc or 1,
            None if memory is None else round(memory * GIB),
            tokens,
            images,
            None if peak is None else peak * 1e12,
            price,
        )
        try:
            made = make_plan(run, asked)
        except Findings as found:
            if any(one.rule != "not-planned" for one in found.diagnostics):
                raise
            not_planned = Result(
                recipe, "not-run", {"does-not-fit": "not-run"}, tuple(found.diagnostics)
            )
            print_and_exit([not_planned], "plan", format, None if format in MACHINE else sys.stderr)
    if format == OutputFormat.full:
        from vtool.planning.text import lines

        typer.echo("\n".join(lines(made)))
    print_and_exit([_result(recipe, made)], "plan", format)


def _of_a_plan(findings: "Iterable[Diagnostic]", recipe: str) -> "Iterator[Diagnostic]":
    """Yield findings with help for somebody who plans: no weight is read for it, and no row."""
    from dataclasses import replace

    for one in findings:
        if one.rule == "hub-model-absent" and one.seen:
            help = f"hf download {one.seen} config.json: a plan reads no more of it"
            yield replace(one, help=f"{help}; {_FIGURES}")
        elif one.rule == "missing-key" and one.parameter in ("model.path", "data.train"):
            rows = "with --tokens N no row of it is read"
            what = rows if one.parameter == "data.train" else _FIGURES
            yield replace(one, help=f"{one.help}; {what}")
        else:
            yield one


def _check_numbers(memory: float | None, peak: float | None, price: float | None) -> None:
    """Refuse numbers that no GPU has."""
    if memory is not None and not 2 <= memory <= 1024:
        raise typer.BadParameter(f"--memory is the GiB of one GPU, from 2 to 1,024, not {memory:g}")
    if peak is not None and not 0.1 <= peak <= 100_000:
        raise typer.BadParameter(
            f"--peak is the TFLOP/s of one GPU, from 0.1 to 100,000, not {peak:g}"
        )
    if price is not None and (peak is None or not 0 <= price < 1e6):
        raise typer.BadParameter("--price is a number of money for an hour, and goes with --peak")


def _result(recipe: str, made: "MemoryPlan") -> "Result":
    from vtool.diagnostics import Diagnostic
    from vtool.diagnostics.result import Result
    from vtool.planning.text import remedy, verdict

    rule, details = "does-not-fit", {"does-not-fit": made.measured()}
    if made.fits is None:
        details[rule]["reason"] = "--memory was not given"
        return Result(recipe, "clean", {rule: "not-run"}, (), details)
    if made.fits:
        return Result(recipe, "clean", {rule: "passed"}, (), details)
    finding = Diagnostic(rule, verdict(made), remedy(made))
    return Result(recipe, "unsafe", {rule: "failed"}, (finding,), details)
