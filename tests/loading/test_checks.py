"""The table of checks, and what belongs to each of them elsewhere."""

from typing import get_args

from vtool.config.schema.load_check import LoadCheck, SourceKind
from vtool.diagnostics.rules_loading import CLASS_RULES, FRAMEWORK_CLASS_RULES
from vtool.loading.grading import GRADERS
from vtool.loading.probe import stale
from vtool.loading.probe.audit import MEASUREMENTS
from vtool.loading.probe.checks import CHECKS, TWO_RANKS, WATCHED


def test_each_check_has_a_measurement_and_a_grader() -> None:
    assert [check.rule for check in CHECKS] == list(GRADERS)
    assert {check.measurement for check in CHECKS} == {WATCHED, TWO_RANKS, *MEASUREMENTS}


def test_each_check_is_a_rule_and_a_setting() -> None:
    assert [check.rule for check in CHECKS] == [*CLASS_RULES, *FRAMEWORK_CLASS_RULES]
    assert [check.rule for check in CHECKS if check.hosts] == list(FRAMEWORK_CLASS_RULES)
    setting = get_args(LoadCheck.model_fields["checks"].annotation)[0]
    assert set(get_args(setting)) == {check.rule for check in CHECKS}


def test_each_source_that_a_check_needs_can_be_asked_for_and_loaded_from() -> None:
    needed = {source for check in CHECKS for source in check.sources}
    assert needed | {"owned"} == set(get_args(SourceKind))
    (sources,) = (check.sources for check in CHECKS if check.rule == "stale-reference")
    assert sources == (stale.RING, *stale.FURTHER_SOURCES)
