"""The table of rules, by name."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from vtool.diagnostics.rule import Rule

RULE_MODULES = (
    "vtool.diagnostics.rules_recipe",
    "vtool.diagnostics.rules_live",
    "vtool.diagnostics.rules_baseline",
    "vtool.diagnostics.rules_folder",
    "vtool.diagnostics.rules_loading",
    "vtool.diagnostics.rules_data",
    "vtool.diagnostics.rules_quality",
    "vtool.diagnostics.rules_boxes",
    "vtool.diagnostics.rules_embedding",
    "vtool.diagnostics.rules_formats",
    "vtool.diagnostics.rules_environment",
    "vtool.diagnostics.rules_launch",
    "vtool.diagnostics.rules_run",
    "vtool.diagnostics.rules_planning",
    "vtool.diagnostics.rules_evaluation",
    "vtool.diagnostics.rules_serving",
    "vtool.diagnostics.rules_hub",
    "vtool.verification.proofs",
    "vtool.watch.conclusions",
    "vtool.config.rules",
    "vtool.config.foreign.rules",
)
"""Modules with a tuple `RULES`, imported one after the other until a name is found.

A rule of settings is next to its check, in `config/rules/`, and a rule of a proof in the file of
the proof, in `verification/proofs/`; whoever raises one has imported it. Every other rule is raised
in several places, or where torch is imported, so its text is here, in `diagnostics`, where a report
or `vtool explain` finds it without torch.
"""


@cache
def _rules(source: str) -> dict[str, Rule]:
    return {rule.name: rule for rule in import_module(source).RULES}


class _Table(Mapping[str, Rule]):
    """Every rule by its name, read from `RULE_MODULES` on use."""

    def __getitem__(self, name: str) -> Rule:
        for source in RULE_MODULES:
            if name in (rules := _rules(source)):
                return rules[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for source in RULE_MODULES for name in _rules(source))

    def __len__(self) -> int:
        return sum(1 for _ in self)


RULES: Mapping[str, Rule] = _Table()

__all__ = ["RULES", "RULE_MODULES", "Rule"]
