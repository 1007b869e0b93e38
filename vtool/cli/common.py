"""What the commands share: findings become printed lines and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vtool.diagnostics import Findings


@contextmanager
def reported(
    command: str, subject: str, format: str = "full", stopped: str = "stopped"
) -> Iterator[None]:
    """Print the findings that are raised inside, and exit:

    1, or 2 where nothing at all could be done; 130 after a Ctrl-C.
    """
    import typer

    try:
        yield
    except Findings as findings:
        print_findings(findings, command, subject, format)
        raise typer.Exit(2 if findings.fatal else 1) from None
    except KeyboardInterrupt:
        sys.stderr.write(stopped + "\n")
        raise typer.Exit(130) from None


def print_findings(
    findings: Findings, command: str = "train sft", subject: str = "", format: str = "full"
) -> None:
    """Findings on standard error (as a document for programs: on standard output)."""
    from vtool.config.resources import opened
    from vtool.diagnostics.render import MACHINE, render
    from vtool.diagnostics.result import Result

    result = Result.of_findings(subject, findings.diagnostics)
    render(
        [result],
        format,
        command=command,
        stream=sys.stdout if format in MACHINE else sys.stderr,
        locate=opened,
    )
