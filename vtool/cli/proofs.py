"""Proofs of a recipe, as `verify` and `train` print them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from vtool.config.schema import Run
    from vtool.diagnostics.result import Result
    from vtool.verify.proofs.report import ProofReport


def parse_proof_names(only: Sequence[str]) -> tuple[str, ...]:
    """Return the rules of the proofs that are named, by rule or by code.

    Raises:
        Findings: `unknown-choice`, with the nearest names.
    """
    from vtool.diagnostics import RULES, Diagnostic, Findings
    from vtool.diagnostics.near_miss import did_you_mean, near
    from vtool.verify.proofs import NAMES

    codes = {RULES[rule].code.lower(): rule for rule in NAMES}
    found = tuple(codes.get(name.lower(), name) for name in only)
    if unknown := [name for name in found if name not in NAMES]:
        raise Findings(
            [
                Diagnostic(
                    "unknown-choice",
                    f"--only {name}: there is no such proof",
                    did_you_mean(near(name, NAMES)) or f"one of {', '.join(NAMES)}",
                )
                for name in unknown
            ],
            fatal=True,
        )
    return found


def proofs_result(subject: str, proved: "ProofReport") -> "Result":
    """Return the verdict of the proofs, for every output format."""
    from vtool.diagnostics.result import Result

    findings = tuple(proof.finding for proof in proved.proofs if proof.finding)
    checks = proved.checks()
    verdict = "unsafe" if findings else "clean" if "passed" in checks.values() else "not-run"
    return Result(subject, verdict, checks, findings, proved.details())  # type: ignore[arg-type]


def not_run(subject: str, only: Sequence[str], why: str) -> "Result":
    """Return the verdict where no proof could be made, and nothing is wrong with the recipe."""
    from vtool.diagnostics.result import Result
    from vtool.verify.proofs import NAMES

    rules = only or NAMES
    checks, details = dict.fromkeys(rules, "not-run"), {rule: {"reason": why} for rule in rules}
    return Result(subject, "not-run", checks, details=details)


def print_proofs(proved: "ProofReport") -> None:
    """Print a table of what was measured, and what rounding allows."""
    from vtool.report.words import difference

    rows = ", ".join(proved.rows)
    typer.echo(f"proofs: {proved.model}, on {len(proved.rows)} rows of data.train: {rows}")
    for change in proved.changes:
        typer.echo(f"  here: {change}")
    width = max(len(proof.rule) for proof in proved.proofs)
    typer.echo(f"  {'':8}  {'':{width}}  measured  rounding  compared")
    for proof in proved.proofs:
        measured, allowed = difference(proof.measured, "0"), difference(proof.tolerance, "none")
        typer.echo(
            f"  {proof.state.replace('-', ' '):8}  {proof.rule:{width}}  {measured:>8}"
            f"  {allowed:>8}  {proof.reason or proof.what}"
        )


def preflight(run: "Run") -> "ProofReport | str":
    """Make the fast proofs of a run that is about to start.

    Returns:
        The proofs; or why they cannot be made, which ends no run: its start says what stops it.
    """
    from vtool.diagnostics import Findings
    from vtool.verify.proofs.report import NotProvable
    from vtool.verify.prove import prove

    try:
        return prove(run, fast=True)
    except NotProvable as error:
        return str(error)
    except Findings as findings:
        return findings.diagnostics[0].message
    # no room for a temporary folder, no memory, what a library raises of a folder: the run's start
    # has the better message
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def summary(proved: "ProofReport") -> str:
    """Return one line for the start of a run."""
    states = [proof.state for proof in proved.proofs]
    missed = [proof.rule for proof in proved.proofs if proof.state == "not-run"]
    more = f", {len(missed)} not run ({', '.join(missed)})" if missed else ""
    return (
        f"preflight: {states.count('passed')} proofs passed{more}, in {proved.seconds:.1f} s;"
        " `vtool verify` makes all of them"
    )
