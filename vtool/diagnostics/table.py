"""The one table of rules."""

from vtool.diagnostics import rules_config, rules_data, rules_loading, rules_run
from vtool.diagnostics.rule import Rule

RULES: dict[str, Rule] = {rule.name: rule for rule in (*rules_config.RULES, *rules_data.RULES, *rules_run.RULES, *rules_loading.RULES)}

__all__ = ["RULES", "Rule"]
