"""The result of checking one subject."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vtool.diagnostics.diagnostic import Diagnostic
from vtool.diagnostics.printable import printable

Verdict = Literal["clean", "warnings", "incomplete", "unsafe", "failed", "not-run"]
"""`warnings` and `incomplete` are of `vtool watch`: no error, but a warning; nothing found, but a
check that no run is clean without could not look."""


@dataclass(frozen=True, slots=True)
class Result:
    """One subject's verdict.

    `checks` has `passed`, `failed` or `not-run` for every rule that was asked for.
    """

    subject: str
    verdict: Verdict
    checks: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Measurements by rule, passed or not: `reason`, `measured`, `tolerance` and the like."""

    def __post_init__(self) -> None:
        """Check that verdict, checks and findings agree: printed, they say one thing."""
        object.__setattr__(self, "subject", printable(self.subject))
        found = {finding.rule for finding in self.findings}
        failed = {rule for rule, state in self.checks.items() if state == "failed"}
        errors = {finding.rule for finding in self.findings if finding.severity == "error"}
        assert failed <= found, f"{self.subject}: {failed - found} failed without a finding"
        assert not errors & {rule for rule in self.checks if self.checks[rule] == "passed"}, (
            f"{self.subject}: {errors} passed with an error"
        )
        right = not errors or self.verdict not in ("clean", "warnings", "incomplete")
        assert right, f"{self.subject}: {self.verdict} with {errors}"

    @staticmethod
    def of_findings(subject: str, findings: Sequence[Diagnostic]) -> "Result":
        """Make a result of findings, whose rules are its failed checks."""
        failed = sorted({finding.rule for finding in findings if finding.severity == "error"})
        checks = dict.fromkeys(failed, "failed")
        return Result(subject, "unsafe" if failed else "clean", checks, tuple(findings))


def count(results: Sequence[Result]) -> dict[str, int]:
    """Count findings by severity, and checks by how they ended."""
    severities = [finding.severity for result in results for finding in result.findings]
    checks = [state for result in results for state in result.checks.values()]
    return {
        f"{severity}s": severities.count(severity) for severity in ("error", "warning", "note")
    } | {
        "passed": checks.count("passed"),
        "failed": checks.count("failed"),
        "not_run": checks.count("not-run"),
    }


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 without an error, 1 with one, 2 where no subject could be checked."""
    if all(result.verdict == "not-run" for result in results):
        return 2
    return 1 if count(results)["errors"] else 0
