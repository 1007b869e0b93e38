"""The one table of rules."""

import re

import pytest

from vtool.diagnostics import (
    RULES,
    Diagnostic,
    Rule,
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


def test_names_and_codes_are_unique() -> None:
    tables = (
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
    rules = [rule for table in tables for rule in table.RULES]
    assert len(rules) == len(RULES) == len({rule.code for rule in rules})


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_says_all_that_explain_shows(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert re.fullmatch(r"VT[0-8]\d\d", rule.code)
    for text in (rule.summary, rule.why, rule.fix):
        assert text.endswith((".", '"'))
    assert rule.bad != rule.good


def test_a_finding_has_its_rules_code_and_severity() -> None:
    finding = Diagnostic("ignored-setting", "x")
    assert (finding.code, finding.severity) == ("VT211", "note")
    assert Diagnostic("ignored-setting", "x", severity="error").severity == "error"
    with pytest.raises(AssertionError):
        Diagnostic("no-such-rule", "x")
