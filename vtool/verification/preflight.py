"""The fast proofs of a run that is about to start. Torch is imported only where they are made."""

import os
from collections.abc import Callable
from typing import Any

from vtool.config.schema import Run
from vtool.diagnostics import Findings
from vtool.launchers import is_first
from vtool.verification.not_provable import NotProvable
from vtool.verification.proofs.report import ProofReport, record_without_proofs
from vtool.watch import paused


def preflight_record(
    run: Run, *, enabled: bool = True, say: Callable[[str], object] = print
) -> dict[str, Any] | None:
    """Prove a recipe, and return what the run's folder keeps of it.

    Args:
        enabled: false where the user asks for no proofs; the record then says so.
        say: is given a line about how it went.

    Returns:
        The content of proofs.json; None on every rank but the first, and of a finished run.

    Raises:
        Findings: of the proofs that failed. Nothing should be trained then.
    """
    if not is_first() or os.path.exists(run.folder / "result.json"):
        return None
    if not enabled:
        return record_without_proofs()
    report = _prove(run)
    if isinstance(report, str):
        say(f"preflight: not run: {report}")
        return record_without_proofs(report)
    if findings := [proof.finding for proof in report.proofs if proof.finding]:
        raise Findings(findings)
    say(_summary(report))
    return report.as_record()


def _prove(run: Run) -> ProofReport | str:
    """Make the proofs; or return why they cannot be made, which stops no run."""
    from vtool.verification.prove import prove

    try:
        with paused():  # what proofs train is not what the run teaches
            return prove(run, fast=True)
    except NotProvable as error:
        return error.reason
    except Findings as findings:  # the run's start says what stops it
        return findings.diagnostics[0].message
    # no room for a temporary folder, no memory, what a library raises of a folder: the run's start
    # has the better message
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _summary(report: ProofReport) -> str:
    passed = sum(proof.state == "passed" for proof in report.proofs)
    missed = [proof.rule for proof in report.proofs if proof.state == "not-run"]
    more = f", {len(missed)} not run ({', '.join(missed)})" if missed else ""
    return (
        f"preflight: {passed} proofs passed{more}, in {report.seconds:.1f} s;"
        " `vtool verify` makes all of them"
    )
