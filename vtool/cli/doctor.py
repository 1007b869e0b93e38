"""The command `vtool doctor [RECIPE] [KEY=VALUE]…`."""

from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete
from vtool.cli.formats import OutputFormat
from vtool.cli.readable_trainer import READABLE, ReadableTrainer, readable_trainer, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vtool.doctor.diagnose import Diagnosis

WIDTH = 80


def doctor(
    recipe: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete.recipe,
            metavar="RECIPE",
            help="Check only what this recipe needs.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.overrides,
            metavar="KEY=VALUE",
            help="Settings that take the place of the recipe's.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="EXE",
            help="Look only for known silent bugs, in the packages of this Python interpreter.",
        ),
    ] = None,
    trainer: Annotated[
        ReadableTrainer | None,
        typer.Option(
            "--from",
            parser=readable_trainer,
            autocompletion=trainers,
            metavar=READABLE,
            help=(
                "RECIPE is a configuration file of this trainer: look only for known"
                " silent bugs that concern it."
            ),
        ),
    ] = None,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Say what this machine can run, what is missing, and which known silent bugs it has.

    Works where torch does not import.
    """
    from vtool.cli.common import exit_on_findings, print_and_exit

    if trainer and (recipe is None or overrides):
        raise typer.BadParameter(f"--from {trainer} takes one file of that trainer")
    subject = recipe or python or "this machine"
    with exit_on_findings("doctor", subject, format):
        diagnosis = _diagnose(recipe, overrides or [], python, trainer)
    listed = diagnosis.bugs.listed if diagnosis.bugs else ()
    if format == OutputFormat.full:
        typer.echo("\n".join(_table(diagnosis)))
    print_and_exit([diagnosis.result(subject)], "doctor", format, already_reported=listed)


def _diagnose(
    recipe: str | None, overrides: list[str], python: str | None, trainer: ReadableTrainer | None
) -> "Diagnosis":
    from pathlib import Path

    from vtool.doctor.diagnose import advise, diagnose
    from vtool.doctor.recipe import needs_of
    from vtool.doctor.script import read_recipe_or_script, script_of

    if recipe is not None and trainer is not None:
        return advise(python, read_recipe_or_script(trainer.value, Path(recipe)))
    needs = needs_of(recipe, overrides) if recipe is not None else None
    if python is not None:
        return advise(python, script_of(needs) if needs else None)
    return diagnose(needs)


def _table(diagnosis: "Diagnosis") -> "Iterator[str]":
    """Yield three columns under the name of each section; the last one is wrapped."""
    import textwrap

    names = max((len(row.name) for row in diagnosis.rows), default=0)
    states = min(22, max((len(row.state) for row in diagnosis.rows), default=0))
    section = ""
    for row in diagnosis.rows:
        if row.section != section:
            section = row.section
            yield section
        head = f"  {row.name:<{names}}  {row.state:<{states}}"
        if len(row.state) > states and row.note:
            yield head.rstrip()
            head = " " * (names + states + 4)
        yield from textwrap.wrap(
            row.note,
            WIDTH,
            initial_indent=f"{head}  ",
            subsequent_indent=" " * (names + states + 6),
            break_on_hyphens=False,
        ) or [head.rstrip()]
    if diagnosis.bugs is not None:
        yield from diagnosis.bugs.lines
    yield ""
