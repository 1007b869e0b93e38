"""The definition of a proof, and of its result. Torch-free."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vtool.diagnostics import Diagnostic, Origin, Rule

if TYPE_CHECKING:
    from vtool.verification import context

    ProofContext = context.ProofContext
else:  # importing the class would import torch, and the files of proofs only name it
    ProofContext = object

SHIPPED_PASS = (
    "vtool's own code passes this for every shipped recipe: where a recipe of yours fails it, "
)
"""The beginning of the advice in most proofs' rules."""
ONE_ROW = "of the rows looked at, one alone can be used"
"""The reason for not running a proof that compares rows in one batch."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A computation that `vtool verify RECIPE` makes, and the rule that its failure is reported by.

    Each has a file of its own, named after the rule. The file imports torch inside `compute` only,
    so that `vtool explain` and the renderers read the rules without it.
    """

    rule: Rule
    compute: "Callable[[ProofContext], ProofResult]"
    section: Literal["What goes in", "The forward pass", "The gradient", "Steps"]
    """The heading in docs/verify.md."""
    method: str
    """The computation and its comparison, for docs/verify.md (Markdown)."""
    catches: str
    """Known defects that it would have caught, for docs/verify.md (Markdown)."""
    upstream: str
    """The issue that its case in tests/zoo is modelled on: `repository#number`."""
    fast: bool = True
    """True where one process can make it, on the bare model: with --fast and before a run."""
    on_ranks: bool = False
    """True where, without --fast, two processes make it on the recipe's own engine."""

    @property
    def name(self) -> str:
        """The name of its rule."""
        return self.rule.name


@dataclass(frozen=True, slots=True)
class ProofResult:
    """The outcome of one proof, and what was measured."""

    rule: str
    what: str
    """The comparison, in words."""
    state: Literal["passed", "failed", "not-run"]
    measured: float | None = None
    """The difference that is largest relative to what is allowed for it."""
    tolerance: float | None = None
    """The difference allowed: derived (`vtool.verification.rounding`), or 0 for equal bits."""
    reason: str = ""
    """The reason why it was not run."""
    finding: Diagnostic | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A measured difference between two computations of the same thing."""

    where: str
    measured: float
    allowed: float

    @property
    def ratio(self) -> float:
        """`measured` in units of `allowed`: a failure above 1, and where it is NaN."""
        if (self.measured and not self.allowed) or math.isnan(self.measured):
            return math.inf
        return self.measured / self.allowed if self.allowed else 0.0


def passed(rule: Rule, what: str) -> ProofResult:
    """Return the result of a proof that found everything equal."""
    return ProofResult(rule.name, what, "passed", 0.0, 0.0)


def not_run(rule: Rule, what: str, reason: str) -> ProofResult:
    """Return the result of a proof that this recipe or these rows give nothing to compare for."""
    return ProofResult(rule.name, what, "not-run", reason=reason)


def failed(
    rule: Rule,
    what: str,
    message: str,
    *,
    help: str | None = None,
    expected: str | None = None,
    seen: str | None = None,
    origin: Origin | None = None,
    worst: Difference | None = None,
) -> ProofResult:
    """Return the result of a proof that found a difference."""
    measured, allowed = (worst.measured, worst.allowed) if worst else (None, None)
    finding = Diagnostic(rule.name, message, help=help, origin=origin, expected=expected, seen=seen)
    return ProofResult(rule.name, what, "failed", measured, allowed, finding=finding)


def check_differences(
    rule: Rule, what: str, differences: Iterable[Difference], message: str, help: str | None = None
) -> ProofResult:
    """Return "passed" where no difference is larger than allowed, or "failed" with the worst one.

    Args:
        message: what a difference means; where it is, and how large, is appended.
    """
    found = list(differences)
    assert found, f"{rule.name} has compared nothing"
    worst = max(found, key=lambda difference: difference.ratio)
    if worst.ratio <= 1:
        return ProofResult(rule.name, what, "passed", worst.measured, worst.allowed)
    count = sum(difference.ratio > 1 for difference in found)
    more = f", and in {count - 1} more" if count > 1 else ""
    limit = f"{worst.allowed:.2g} is rounding" if worst.allowed else "no bit may differ"
    return failed(
        rule,
        what,
        f"{message}: in {worst.where} by {worst.measured:.2g}, where {limit}{more}",
        help=help,
        worst=worst,
    )


def list_first(names: Sequence[str], count: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
