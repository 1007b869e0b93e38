"""The printing of findings and results, and the exit status that all commands share."""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO

import typer

from vtool.diagnostics import Findings

if TYPE_CHECKING:
    from vtool.diagnostics import Diagnostic
    from vtool.diagnostics.result import Result


@contextmanager
def exit_on_findings(
    command: str, subject: str, format: str = "full", stopped: str = "stopped"
) -> Iterator[None]:
    """Print the findings that are raised inside, and exit.

    The status is 1, or 2 where the command could do nothing at all; 130 after a Ctrl-C.
    """
    try:
        yield
    except Findings as findings:
        print_findings(findings, command, subject, format)
        raise typer.Exit(2 if findings.fatal else 1) from None
    except KeyboardInterrupt:
        sys.stderr.write(stopped + "\n")
        raise typer.Exit(130) from None


def begin_with_training(command: str) -> None:
    """Check that what trains is installed, and say on standard error which release is untested.

    Raises:
        Findings: `extra-not-installed`, fatal.
    """
    from vtool.config.environment.packages import require_training, untested_here

    require_training(command)
    for one in untested_here():
        typer.echo(f"{one.severity}[{one.rule} {one.code}]: {one.message}", err=True)


def print_findings(
    findings: Findings, command: str = "train sft", subject: str = "", format: str = "full"
) -> None:
    """Print findings on standard error; a document for programs on standard output."""
    from vtool.diagnostics.render import MACHINE
    from vtool.diagnostics.result import Result

    stream = sys.stdout if format in MACHINE else sys.stderr
    print_results([Result.of_findings(subject, findings.diagnostics)], command, format, stream)


def print_results(
    results: "Sequence[Result]",
    command: str,
    format: str,
    stream: TextIO | None = None,
    already_reported: "Collection[Diagnostic]" = (),
) -> None:
    """Print results, on standard output unless another stream is given.

    Args:
        already_reported: findings that the command itself has printed.
    """
    from vtool.config.resources import opened
    from vtool.diagnostics.render import render_results

    render_results(
        results,
        format,
        command=command,
        stream=stream or sys.stdout,
        locate=opened,
        already_reported=already_reported,
    )


def print_and_exit(
    results: "Sequence[Result]",
    command: str,
    format: str,
    stream: TextIO | None = None,
    already_reported: "Collection[Diagnostic]" = (),
) -> NoReturn:
    """Print results, and exit with the status that they amount to."""
    from vtool.diagnostics.result import exit_code

    print_results(results, command, format, stream, already_reported)
    raise typer.Exit(exit_code(results))
