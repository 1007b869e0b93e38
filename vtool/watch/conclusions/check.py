"""A check of the facts: its rule, the look that it is about, and what follows from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.facts import Facts

Look = Literal["learnt", "arrived", "alone", "placed", "ledger"]


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A check's findings, or the reason why it was not run."""

    findings: tuple[Diagnostic, ...] = ()
    not_run: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """`failed` for an error or a warning, `not-run` where it could not look, else `passed`."""
        if any(finding.severity != "note" for finding in self.findings):
            return "failed"
        return "not-run" if self.not_run else "passed"


@dataclass(frozen=True, slots=True)
class WatchCheck:
    """A pure function of the facts, for one rule."""

    rule: Rule
    look: Look
    conclude: Callable[[Facts], CheckOutcome]

    @property
    def name(self) -> str:
        """The name of its rule."""
        return self.rule.name


def found(rule: Rule, message: str, **more: Any) -> Diagnostic:
    """Return a finding of a rule."""
    return Diagnostic(rule.name, message, **more)
