"""The ranks of `vtool evaluate`: this process, those of an outer launcher, or ones of its own."""

from collections.abc import Sequence
from functools import partial

import typer

from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.printable import printable
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.evaluation.run import Evaluated, EvaluationRequest, check_request, evaluate_models
from vtool.launchers import joined_launch


def evaluate_on_ranks(requests: Sequence[EvaluationRequest], nproc: int | None) -> list[Evaluated]:
    """Evaluate models, one after the other; the list is empty on any rank but the first.

    Args:
        requests: of each model.
        nproc: the processes to start; None: none.

    Raises:
        Findings: fatal where nothing could be asked; `launch-conflict`, `rank-failed`.
    """
    launch = joined_launch()
    if launch and launch.world > 1 and nproc is not None:
        message = (
            f"--nproc {nproc}, and {launch.command} has started {launch.world} processes already"
            f" ({launch.said})"
        )
        help = "leave --nproc out"
        raise SharedFindings(Diagnostic("launch-conflict", message, help), fatal=True)
    if nproc is None or nproc == 1:
        return evaluate_models(requests, _say)
    from vtool.training.launch import start_ranks

    for request in requests:  # what is wrong is reported once, and not by each rank
        check_request(request, nproc)
    done = start_ranks(partial(_on_rank, tuple(requests)), nproc, "evaluate", _report)
    if isinstance(done, Findings):
        raise done
    found: list[Evaluated] = done
    return found


def _on_rank(requests: Sequence[EvaluationRequest], ranks: Ranks) -> list[Evaluated] | Findings:
    """Evaluate in a rank's own process; what all ranks have found is the first one's to return."""
    try:
        return evaluate_models(requests, _say)
    except SharedFindings as findings:
        return findings


def _report(findings: Findings) -> None:
    from vtool.cli.common import print_findings

    print_findings(findings, "evaluate")


def _say(line: str) -> None:
    typer.echo(printable(line), err=True)
