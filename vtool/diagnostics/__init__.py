"""Findings, the table of rules that they refer to (`RULES`), and the renderers."""

from vtool.diagnostics.diagnostic import Diagnostic, Findings, Origin
from vtool.diagnostics.table import RULES, Rule

__all__ = ["RULES", "Diagnostic", "Findings", "Origin", "Rule"]
