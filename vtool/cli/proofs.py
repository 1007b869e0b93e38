"""Proofs of a recipe, as `verify` and `train` print them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from vtool.config.schema import Run
    from vtool.diagnostics.result import Result
    from vtool.verify.proved import Proved


def named(only: Sequence[str]) -> tuple[str, ...]:
    """The proofs that are asked for by their rules' names or codes.

    Raises:
        Findings: `unknown-choice`, with what was probably meant.
    """
    from vtool.diagnostics import RULES, Diagnostic, Findings
    from vtool.diagnostics.near_miss import did_you_mean, near
    from vtool.verify.proved import ALONE, RANKED

    known = list(dict.fromkeys((*ALONE, *RANKED)))
    codes = {RULES[rule].code.lower(): rule for rule in known}
    found = [codes.get(name.lower(), name) for name in only]
    unknown = [
        Diagnostic(
            "unknown-choice",
            f"--only {name}: there is no such proof",
            did_you_mean(near(name, known)) or f"one of {', '.join(known)}",
        )
        for name in found
        if name not in known
    ]
    if unknown:
        raise Findings(unknown, fatal=True)
    return tuple(found)


def result_of(subject: str, proved: "Proved") -> "Result":
    """The verdict, for every format."""
    from vtool.diagnostics.result import Result

    findings = tuple(proof.finding for proof in proved.proofs if proof.finding)
    verdict = (
        "unsafe" if findings else "clean" if "passed" in proved.checks().values() else "not-run"
    )
    return Result(subject, verdict, proved.checks(), findings, proved.details())  # type: ignore[arg-type]


def not_run(subject: str, only: Sequence[str], why: str) -> "Result":
    """The verdict where no proof could be made, and nothing stands against the recipe."""
    from vtool.diagnostics.result import Result
    from vtool.verify.proved import ALONE, RANKED

    asked = only or dict.fromkeys((*ALONE, *RANKED))
    return Result(
        subject,
        "not-run",
        dict.fromkeys(asked, "not-run"),
        details={rule: {"reason": why} for rule in asked},
    )


def print_proofs(proved: "Proved") -> None:
    """A table: what was measured, and what is allowed."""
    typer.echo(
        f"proofs: {proved.model}, on {len(proved.rows)} rows of data.train:"
        f" {', '.join(proved.rows)}"
    )
    for change in proved.changes:
        typer.echo(f"  here: {change}")
    wide = max(len(proof.rule) for proof in proved.proofs)
    typer.echo(f"  {'':8}  {'':{wide}}  measured  rounding  compared")
    for proof in proved.proofs:
        measured = (
            "" if proof.measured is None else f"{proof.measured:.1e}" if proof.measured else "0"
        )
        allowed = (
            ""
            if proof.tolerance is None
            else f"{proof.tolerance:.1e}"
            if proof.tolerance
            else "none"
        )
        typer.echo(
            f"  {proof.state.replace('-', ' '):8}  {proof.rule:{wide}}  {measured:>8}  {allowed:>8}"
            f"  {proof.reason or proof.what}"
        )


def preflight(run: "Run") -> "Proved | str":
    """The fast proofs of a run that is about to start;

    or why they cannot be made, which ends no run: it says itself what stops it.
    """
    from vtool.diagnostics import Findings
    from vtool.verify.prove import prove
    from vtool.verify.proved import NotProvable

    try:
        return prove(run, fast=True)
    except NotProvable as error:
        return str(error)
    except Findings as findings:
        return findings.diagnostics[0].message
    # no room for a temporary folder, no memory, what a library raises of a folder: the run's start
    # tells better
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def summary(proved: "Proved") -> str:
    """One line for the start of a run."""
    states = [proof.state for proof in proved.proofs]
    missed = [proof.rule for proof in proved.proofs if proof.state == "not-run"]
    more = f", {len(missed)} not run ({', '.join(missed)})" if missed else ""
    return (
        f"preflight: {states.count('passed')} proofs passed{more}, in {proved.seconds:.1f} s;"
        " `vtool verify` makes all of them"
    )
