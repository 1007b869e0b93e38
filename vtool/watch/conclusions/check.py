"""A check of the facts: its rule, what it must have seen to pass, and what follows from the facts.

No check can pass by saying nothing: an outcome carries what was looked at, and one that looked at
nothing, at less than its check asks for, or at numbers with too much noise in them is not run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.facts import Facts

Look = Literal["learnt", "arrived", "alone", "placed", "causal", "ledger"]
Unit = Literal[
    "steps",
    "ranks",
    "micro-batches",
    "passes",
    "tokens",
    "end tokens",
    "answers",
    "rows",
    "texts",
    "pairs",
    "tensors",
    "elements",
    "layers",
    "groups",
    "models",
]
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError)
"""Exceptions that facts of the wrong shape raise: they may come from anywhere."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A check's findings with what it looked at, or the reason why it was not run."""

    findings: tuple[Diagnostic, ...] = ()
    not_run: str | None = None
    looked_at: Mapping[Unit, int] = field(default_factory=dict)
    """Numbers of what was compared. Without one, or with a 0, nothing has passed."""
    noise: float | None = None
    """The relative error of the estimates that were compared; None where they are exact."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    applies: bool = True
    """False where the check's question does not arise in this run, such as ranks of one process."""
    is_needed: bool = False
    """True where this run is not clean without it, though others may be."""

    def __post_init__(self) -> None:
        """Turn an outcome that would pass without having looked at anything into `not-run`."""
        if self.is_failed or self.not_run:
            return
        if missing := [unit for unit, count in self.looked_at.items() if count < 1]:
            object.__setattr__(self, "not_run", f"it looked at no {missing[0]}")
        elif not self.looked_at:
            object.__setattr__(self, "not_run", "it looked at nothing")

    @property
    def is_failed(self) -> bool:
        """Return whether there is an error or a warning."""
        return any(finding.severity != "note" for finding in self.findings)

    @property
    def state(self) -> str:
        """`failed` for an error or a warning, `not-run` where it could not look, else `passed`."""
        if self.is_failed:
            return "failed"
        return "not-run" if self.not_run else "passed"


@dataclass(frozen=True, slots=True)
class WatchCheck:
    """A pure function of the facts, for one rule."""

    rule: Rule
    look: Look
    conclude: Callable[[Facts], CheckOutcome]
    must_see: Mapping[Unit, int]
    """The least that it must have looked at to pass."""
    most_noise: float | None = None
    """The greatest relative error with which it may still pass."""

    def __post_init__(self) -> None:
        """Check that something is asked for."""
        assert self.must_see, f"{self.name} would pass without having looked at anything"
        assert all(count > 0 for count in self.must_see.values()), self.name

    @property
    def name(self) -> str:
        """The name of its rule."""
        return self.rule.name

    def outcome(self, facts: Facts) -> CheckOutcome:
        """Return its outcome: not run where it saw less than it must have seen to pass."""
        try:
            outcome = self.conclude(facts)
        except DAMAGED as error:
            return CheckOutcome(not_run=f"the facts are damaged: {type(error).__name__} {error}")
        if outcome.state != "passed":
            return outcome
        # findings of a look are kept; where it was cut short, the check has not passed
        if errors := facts.errors_of(self.look):
            return replace(outcome, not_run=errors[0])
        if less := self._less(outcome):
            return replace(outcome, not_run=less)
        return outcome

    def _less(self, outcome: CheckOutcome) -> str | None:
        for unit, least in self.must_see.items():
            if (count := outcome.looked_at.get(unit, 0)) < least:
                return f"it takes {least} {unit}, and {count or 'none'} could be looked at"
        noise = outcome.noise
        if self.most_noise is not None and noise is not None and not noise <= self.most_noise:
            return (
                f"what it compares is known to {noise:.1%} alone, and it takes"
                f" {self.most_noise:.1%}"
            )
        return None


def found(rule: Rule, message: str, **more: Any) -> Diagnostic:
    """Return a finding of a rule."""
    return Diagnostic(rule.name, message, **more)
