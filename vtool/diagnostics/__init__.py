"""Findings:

the one way a check speaks. `Diagnostic` is a finding, `RULES` the table it refers to, `render`
prints it.
"""

from vtool.diagnostics.diagnostic import Diagnostic, Findings, Origin
from vtool.diagnostics.table import RULES, Rule

__all__ = ["RULES", "Diagnostic", "Findings", "Origin", "Rule"]
