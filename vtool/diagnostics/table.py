"""The one table of rules."""

from vtool.diagnostics import rules_baseline, rules_config, rules_data, rules_folder, rules_run
from vtool.diagnostics.rule import Rule

_ALL = (*rules_config.RULES, *rules_baseline.RULES, *rules_folder.RULES, *rules_data.RULES, *rules_run.RULES)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}

__all__ = ["RULES", "Rule"]
