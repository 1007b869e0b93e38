"""The command `vtool doctor [RECIPE] [KEY=VALUE]…`."""

from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli.formats import Format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vtool.doctor.diagnose import Diagnosis

WIDTH = 80


def doctor(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Check only what this recipe needs.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings that take the place of the recipe's."),
    ] = None,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Say what this machine can run, what is missing, and how to install it.

    Works where torch does not import.
    """
    from vtool.cli.common import exit_on_findings, print_and_exit

    subject = recipe or "this machine"
    with exit_on_findings("doctor", subject, format):
        from vtool.doctor.diagnose import diagnose
        from vtool.doctor.recipe import needs_of

        diagnosis = diagnose(needs_of(recipe, overrides or []) if recipe else None)
    if format == Format.full:
        typer.echo("\n".join(_table(diagnosis)))
    print_and_exit([diagnosis.result(subject)], "doctor", format)


def _table(diagnosis: "Diagnosis") -> "Iterator[str]":
    """Yield three columns under the name of each section; the last one is wrapped."""
    import textwrap

    names = max(len(row.name) for row in diagnosis.rows)
    states = min(22, max(len(row.state) for row in diagnosis.rows))
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
    yield ""
