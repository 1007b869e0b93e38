"""The command `vtool convert IN OUT [KEY=VALUE]…`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli.formats import OutputFormat

if TYPE_CHECKING:
    from vtool.data.convert import Conversion
    from vtool.diagnostics.result import Result

_LISTED = 20
"""Refused rows that are listed; the others are counted."""


class To(StrEnum):
    """A kind of file to write."""

    jsonl = "jsonl"
    parquet = "parquet"
    arrow = "arrow"


def convert(
    rows: Annotated[str, typer.Argument(metavar="IN", help="A file or a folder of rows.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, which is new.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of the source, such as format=llava. See data.train.",
        ),
    ] = None,
    to: Annotated[
        To | None, typer.Option(help="Kind of file to write. Default: from the extension of OUT.")
    ] = None,
    max_dropped_rows: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of rows that may be left out; if there are more, nothing is written.",
        ),
    ] = 0,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Convert rows of any layout to the layout `messages`, and say what was read of them."""
    from vtool.cli.common import exit_on_findings, print_and_exit
    from vtool.diagnostics.render import MACHINE

    with exit_on_findings("convert", rows, format):
        from vtool.data.convert import convert_rows

        made = convert_rows(rows, out, to and to.value, settings or (), max_dropped_rows)
    if format not in MACHINE:
        _print(made, out)
    print_and_exit([_result(made, rows, max_dropped_rows)], "convert", format)


def _print(made: "Conversion", out: Path) -> None:
    from vtool.diagnostics.printable import printable

    where = f"{made.written:,} written to {out}" if made.written else f"{out} is not written"
    typer.echo(printable(f"{made.source}; {where}"))
    for what, keys in (
        ("read", made.read),
        ("left out, as it says nothing to the model", made.left),
        ("not read", made.ignored),
    ):
        if keys:
            named = ", ".join(f"{key} ({count:,})" for key, count in keys.items())
            typer.echo(printable(f"  {what}: {named}"))


def _result(made: "Conversion", rows: str, most_dropped: int) -> "Result":
    from dataclasses import replace

    from vtool.diagnostics import Diagnostic
    from vtool.diagnostics.result import Result

    allowed = len(made.refused) <= most_dropped and made.written > 0
    findings = [*made.refused[:_LISTED], *([made.beside] if made.beside else [])]
    if (more := len(made.refused) - _LISTED) > 0:
        findings.append(Diagnostic(made.refused[_LISTED].rule, f"… and {more} more rows"))
    if allowed:
        findings = [replace(each, severity="note") for each in findings]
    elif made.refused:
        message = (
            f"{len(made.refused)} of {made.rows} rows cannot be converted; --max-dropped-rows is"
            f" {most_dropped}"
        )
        help = "fix the rows, or allow that many: --max-dropped-rows N"
        findings.append(Diagnostic("too-many-dropped-rows", message, help))
    return replace(Result.of_findings(rows, findings), details={"conversion": made.as_dict()})
