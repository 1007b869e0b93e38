"""What a proof has come to."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from vtool.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class Proof:
    """One rule, and what stands for it or against it."""

    rule: str
    what: str
    """What was compared, in words."""
    state: Literal["passed", "failed", "not-run"]
    measured: float | None = None
    """The largest difference, of the place where it is largest for what is allowed there."""
    tolerance: float | None = None
    """What is allowed there:

    derived (`vtool.verify.proofs.rounding`), or 0 where not a bit may differ.
    """
    reason: str = ""
    """Why it was not run."""
    finding: Diagnostic | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing compared with another."""

    where: str
    measured: float
    allowed: float

    @property
    def ratio(self) -> float:
        """Above 1: too much. NaN is too much."""
        if math.isnan(self.measured):
            return math.inf
        if self.measured <= self.allowed:
            return self.measured / self.allowed if self.allowed else 0.0
        return self.measured / self.allowed if self.allowed else math.inf


def held(
    rule: str, what: str, differences: Iterable[Difference], message: str, help: str | None = None
) -> Proof:
    """Passed, where no difference is larger than what is allowed for it.

    Args:
        message: what it means that one is; where, and how much, is added.
    """
    found = list(differences)
    assert found, f"{rule} has compared something"
    worst = max(found, key=lambda one: one.ratio)
    if worst.ratio <= 1:
        return Proof(rule, what, "passed", worst.measured, worst.allowed)
    several = sum(one.ratio > 1 for one in found)
    more = f", and in {several - 1} more" if several > 1 else ""
    text = (
        f"{message}: in {worst.where} by {worst.measured:.2g}, where"
        f" {_allowed(worst.allowed)}{more}"
    )
    return Proof(
        rule,
        what,
        "failed",
        worst.measured,
        worst.allowed,
        finding=Diagnostic(rule, text, help=help),
    )


def failed(
    rule: str, what: str, message: str, *, expected: str | None = None, seen: str | None = None
) -> Proof:
    """Failed, and nothing to measure."""
    return Proof(
        rule, what, "failed", finding=Diagnostic(rule, message, expected=expected, seen=seen)
    )


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:shown]) + (
        f" and {len(names) - shown} more" if len(names) > shown else ""
    )


def _allowed(tolerance: float) -> str:
    return f"{tolerance:.2g} is rounding" if tolerance else "no bit may differ"
