"""The command `vtool report RUN…`."""

from pathlib import Path
from typing import Annotated

import typer

from vtool.cli import complete


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            autocompletion=complete.runs_and_sweeps,
            metavar="RUN…",
            help="Folders of runs, the name of a sweep, or an evaluation's folder.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write. Default: report.html in RUN; of several runs, in this folder.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Watch a run in the terminal until it ends, instead of writing a page."
        ),
    ] = False,
) -> None:
    """Write one self-contained page: curves, answers, data ledger, settings, checks.

    Several runs stand side by side.
    """
    from vtool.cli.common import exit_on_findings

    if follow and (len(runs) > 1 or output):
        raise typer.BadParameter("--follow watches one run, and writes no page")
    with exit_on_findings("report", str(runs[0]) if len(runs) == 1 else ""):
        from vtool.report.found_runs import find_runs

        runs = find_runs(runs)
        if follow:
            _follow(runs[0])
        else:
            folder = runs[0] if len(runs) == 1 else Path()
            _write(runs, output or folder / "report.html")


def _write(runs: list[Path], page: Path) -> None:
    from vtool.diagnostics import Diagnostic, Findings
    from vtool.diagnostics.printable import printable
    from vtool.diagnostics.progress import working
    from vtool.report import write_report
    from vtool.report.evaluation import is_evaluation, write_evaluation

    of_evaluation = len(runs) == 1 and is_evaluation(runs[0])
    try:
        with working("making the page"):
            written = write_evaluation(runs[0], page) if of_evaluation else write_report(runs, page)
        typer.echo(printable(str(written)))
    except OSError as error:
        message = f"{page} cannot be made: {error.strerror} ({error.filename})"
        help = "name a file elsewhere: --output FILE"
        raise Findings(Diagnostic("run-folder-unwritable", message, help), fatal=True) from error


def _follow(run: Path) -> None:
    from rich.console import Console

    from vtool.report.follow import follow

    try:
        follow(run, Console())
    except KeyboardInterrupt:
        # The run continues; only the watching ends. 130 is the exit status that a shell expects of
        # a command that Ctrl-C ended.
        raise typer.Exit(130) from None
