"""What a rule is."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of rules:

    the source of `vtool explain`, of the documentation and of tests.
    """

    name: str
    """The pattern it finds, in a few hyphenated words: `unknown-key`."""
    code: str
    """VT0xx cannot read · 1xx schema · 2xx cross-field · 3xx live · 4xx loading · 5xx environment ·
    6xx data · 7xx numerics · 8xx run.
    """
    summary: str
    """What it finds, in one sentence."""
    why: str
    """What goes wrong otherwise."""
    bad: str
    """An example that it finds."""
    good: str
    """The same, put right."""
    fix: str
    """What to do."""
    severity: Literal["error", "warning", "note"] = "error"
