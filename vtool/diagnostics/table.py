"""The one table of rules."""

from vtool.diagnostics import rules_config, rules_data, rules_folder, rules_run
from vtool.diagnostics.rule import Rule

RULES: dict[str, Rule] = {rule.name: rule for rule in (*rules_config.RULES, *rules_data.RULES, *rules_folder.RULES, *rules_run.RULES)}

__all__ = ["RULES", "Rule"]
