"""Proofs of a recipe, as `verify` prints them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from vtool.diagnostics.result import Result
    from vtool.verification.proofs.report import ProofReport


def proofs_result(subject: str, proved: "ProofReport") -> "Result":
    """Return the verdict of the proofs, for every output format."""
    from vtool.diagnostics.result import Result

    findings = tuple(proof.finding for proof in proved.proofs if proof.finding)
    checks = proved.checks()
    verdict = "unsafe" if findings else "clean" if "passed" in checks.values() else "not-run"
    return Result(subject, verdict, checks, findings, proved.details())  # type: ignore[arg-type]


def verdict_not_run(subject: str, only: Sequence[str], why: str) -> "Result":
    """Return the verdict where no proof could be made, and nothing is wrong with the recipe."""
    from vtool.diagnostics.result import Result
    from vtool.verification.proofs import PROOF_NAMES

    rules = only or PROOF_NAMES
    checks, details = dict.fromkeys(rules, "not-run"), {rule: {"reason": why} for rule in rules}
    return Result(subject, "not-run", checks, details=details)


def print_proofs(proved: "ProofReport") -> None:
    """Print a table of what was measured, and what rounding allows."""
    from vtool.diagnostics import RULES
    from vtool.diagnostics.printable import printable
    from vtool.report.words import difference

    rows = printable(", ".join(proved.rows))
    typer.echo(f"proofs: {proved.model}, on {len(proved.rows)} rows of data.train: {rows}")
    for change in proved.changes:
        typer.echo(printable(f"  here: {change}"))
    typer.echo(
        f"  {'':8}  measured  rounding  what holds (its rule), and below it what was compared"
    )
    for proof in proved.proofs:
        measured, allowed = difference(proof.measured, "0"), difference(proof.tolerance, "none")
        typer.echo(
            f"  {proof.state.replace('-', ' '):8}  {measured:>8}  {allowed:>8} "
            f" {RULES[proof.rule].claim(proof.state)} ({proof.rule})"
        )
        typer.echo(f"  {'':8}  {'':8}  {'':8}    {proof.reason or proof.what}")
