"""The one table of rules."""

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import vtool
from vtool.diagnostics import RULES, Diagnostic, Rule
from vtool.diagnostics.table import RULE_MODULES


def test_names_and_codes_are_unique() -> None:
    rules = [rule for source in RULE_MODULES for rule in import_module(source).RULES]
    counts = Counter([*(rule.name for rule in rules), *(rule.code for rule in rules)])
    assert [each for each, count in counts.items() if count > 1] == []
    assert {rule.name: rule for rule in rules} == RULES


def test_every_file_with_a_rule_is_a_source_of_the_table() -> None:
    folder = Path(vtool.__file__).parent
    files = {
        file for file in folder.rglob("*.py") if re.search(r"\bRule\($", file.read_text(), re.M)
    }
    sources = {Path(str(import_module(source).__file__)) for source in RULE_MODULES}
    in_package = {file for file in files if file.with_name("__init__.py") in sources}
    assert files - in_package == sources - {file.with_name("__init__.py") for file in in_package}


def texts(file: Path) -> set[str]:
    """Return every text in a file's code."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_a_rule_whose_text_is_in_a_table_is_raised_somewhere_and_named_by_a_test() -> None:
    """A rule that nothing raises would be listed as passed."""
    package, tests = Path(vtool.__file__).parent, Path(__file__).parents[1]
    code = [file for file in package.rglob("*.py") if not file.match("diagnostics/rules_*.py")]
    raised = set().union(*map(texts, code))
    named = set(re.findall(r"[\w-]+", "".join(map(Path.read_text, tests.rglob("*.py")))))
    tables = [import_module(name).RULES for name in RULE_MODULES if ".diagnostics." in name]
    names = [rule.name for rules in tables for rule in rules]
    assert [name for name in names if name not in raised] == [], "nothing raises them"
    assert [name for name in names if name not in named] == [], "no test names them"


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_says_all_that_explain_shows(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert re.fullmatch(r"VT[0-9]\d\d", rule.code)
    for text in (rule.summary, rule.why, rule.fix):
        assert text.endswith((".", '"'))
    assert rule.bad != rule.good


def test_a_finding_has_its_rules_code_and_severity() -> None:
    finding = Diagnostic("ignored-setting", "x")
    assert (finding.code, finding.severity) == ("VT211", "note")
    assert Diagnostic("ignored-setting", "x", severity="error").severity == "error"
    with pytest.raises(AssertionError):
        Diagnostic("no-such-rule", "x")
