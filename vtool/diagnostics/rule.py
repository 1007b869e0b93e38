"""A rule: its name, its code and its texts."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of rules, the source of `vtool explain` and of docs/rules.md."""

    name: str
    """The pattern that it finds, in a few hyphenated words: `unknown-key`."""
    code: str
    """VT0xx cannot read · 1xx schema · 2xx cross-field · 3xx live · 4xx loading · 5xx environment ·
    6xx data · 7xx numerics · 8xx run · 9xx watched trainers.
    """
    summary: str
    """The problem, in one sentence."""
    why: str
    """The damage if nobody finds it."""
    bad: str
    """An example with the problem."""
    good: str
    """The example without the problem."""
    fix: str
    """The remedy."""
    severity: Literal["error", "warning", "note"] = "error"
    """The severity of its findings, unless a finding sets its own."""
    stage: Literal["row", "split", "quality", "references"] | None = None
    """The subject of a rule that `vtool verify` lists among its checks: a row, read to its end; a
    split; or the reference answers of a split that is evaluated.
    """
    holds: str = ""
    """The sentence that is true where the check passes, as each proof has one."""

    def claim(self, state: str) -> str:
        """Return a check's outcome as a sentence: the problem where it failed, else what holds."""
        return self.summary if state == "failed" or not self.holds else self.holds
