"""The verdict on a watched run: the worst of what was found, and of what was not looked at."""

from collections.abc import Mapping

from vtool.diagnostics.result import Verdict
from vtool.watch.conclusions.check import CheckOutcome

FLAGSHIPS = ("targets-not-next", "token-weights-differ")
"""Checks without which no run is clean, where their question arises in it."""


def unlooked(outcomes: Mapping[str, CheckOutcome]) -> tuple[str, ...]:
    """Return the flagships that could not look, though their question arises."""
    missing = {name for name, one in outcomes.items() if one.state == "not-run" and one.applies}
    needed = {name for name, one in outcomes.items() if one.is_needed} | set(FLAGSHIPS)
    return tuple(name for name in outcomes if name in missing & needed)


def run_verdict(outcomes: Mapping[str, CheckOutcome]) -> Verdict:
    """Return the verdict: errors before warnings, before a flagship that could not look."""
    severities = {finding.severity for one in outcomes.values() for finding in one.findings}
    if "error" in severities:
        return "unsafe"
    if "warning" in severities:
        return "warnings"
    return "incomplete" if unlooked(outcomes) else "clean"
