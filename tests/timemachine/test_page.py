"""The page says what the results say, and no more."""

from pathlib import Path
from typing import Any

from timemachine.case import read_cases
from timemachine.page import PAGE, RESULTS, page, read_results, tables, write_results


def side(rule: str) -> dict[str, Any]:
    finding = {"rule": rule, "severity": "error", "message": "a | b"}
    return {"findings": [finding], "cpu_seconds": 2.5, "versions": {}}


def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text("utf-8") == page(read_cases(), read_results(RESULTS))


def test_what_was_not_seen_is_listed_with_its_reason_and_not_counted() -> None:
    cases = read_cases(["transformers-34191", "verl-3332", "verl-3994", "transformers-37766"])
    results: dict[str, Any] = {
        case.name: {
            "outcome": "seen",
            "sides": {name: side(case.rule) for name in case.sides},
        }
        for case in cases
    }
    results["verl-3994"]["outcome"] = "crashed, the clean side: KeyError"
    text = tables(cases, results)
    assert "| transformers | 1 | 0 | 1 |" in text
    assert "| verl | 0 | 1 | 0 |" in text
    assert "| **all** | 1 | 1 | 1 |" in text
    assert "3 of 4 cases, 12 s of CPU in all, 5 s the longest." in text
    assert "### Not seen" in text
    assert "| crashed, the clean side: KeyError |" in text
    assert "a \\| b" in text


def test_a_case_that_was_never_run_is_said_to_be_so() -> None:
    assert "| not run |" in tables(read_cases(["transformers-34191"]), {})


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    results = {"b": {"case": "b"}, "a": {"case": "a"}}
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results
