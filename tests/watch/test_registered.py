"""Every check of the watch, and every rule, that a file has is in the registry, once."""

from importlib import import_module
from pkgutil import iter_modules

from vtool.diagnostics import Rule
from vtool.watch import conclusions
from vtool.watch.conclusions import CHECKS, RULES, WatchCheck


def test_every_check_and_rule_that_a_file_has_is_listed_once() -> None:
    checks: list[WatchCheck] = []
    own: dict[str, Rule] = {}
    for each in iter_modules(conclusions.__path__):
        there = vars(import_module(f"{conclusions.__name__}.{each.name}"))
        checks += there.get("CHECKS", ())
        own |= {value.name: value for value in there.values() if isinstance(value, Rule)}
    assert {check.name for check in checks} == {check.name for check in CHECKS}
    assert len(checks) == len(CHECKS)
    assert sorted(own) == sorted(rule.name for rule in RULES)
