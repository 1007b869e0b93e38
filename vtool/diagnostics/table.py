"""The one table of rules."""

from vtool.diagnostics import (
    rules_baseline,
    rules_config,
    rules_data,
    rules_environment,
    rules_folder,
    rules_live,
    rules_loading,
    rules_proofs,
    rules_run,
)
from vtool.diagnostics.rule import Rule

_TABLES = (
    rules_config,
    rules_live,
    rules_baseline,
    rules_folder,
    rules_loading,
    rules_data,
    rules_environment,
    rules_proofs,
    rules_run,
)
RULES: dict[str, Rule] = {rule.name: rule for table in _TABLES for rule in table.RULES}

__all__ = ["RULES", "Rule"]
