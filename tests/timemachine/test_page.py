"""The page says what the results say, and no more."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from timemachine.case import read_cases
from timemachine.page import (
    PAGE,
    RESULTS,
    ROOT,
    add_result,
    page,
    read_results,
    tables,
    write_results,
)


def side(rule: str, severity: str = "error") -> dict[str, Any]:
    finding = {"rule": rule, "severity": severity, "message": "a | b"}
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
    assert "| transformers | 1 | 0 | 0 | 1 |" in text
    assert "| verl | 0 | 0 | 1 | 0 |" in text
    assert "| **all** | 1 | 0 | 1 | 1 |" in text
    assert "3 of 4 cases, 12 s of CPU in all, 5 s the longest." in text
    assert "### Not seen" in text
    assert "| crashed, the clean side: KeyError |" in text
    assert "a \\| b" in text


def test_a_warning_is_not_counted_with_the_errors() -> None:
    cases = read_cases(["transformers-34191"])
    sides = {name: side(cases[0].rule, "warning") for name in cases[0].sides}
    text = tables(cases, {cases[0].name: {"outcome": "seen", "sides": sides}})
    assert "| **all** | 0 | 1 | 0 | 0 |" in text


def test_what_make_time_machine_cannot_run_by_itself_is_named() -> None:
    cases = read_cases(["verl-5942", "verl-3332"])
    sides = {case.name: {name: side(case.rule) for name in case.sides} for case in cases}
    results = {name: {"outcome": "seen", "sides": those} for name, those in sides.items()}
    assert "(the earlier result is kept): verl-5942.\n" in tables(cases, results)


def test_a_case_that_was_never_run_is_said_to_be_so() -> None:
    assert "| not run |" in tables(read_cases(["transformers-34191"]), {})


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    results = {"b": {"case": "b"}, "a": {"case": "a"}}
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results


ADD = """
import sys
import subprocess
import sys
from pathlib import Path
from timemachine.page import add_result
for number in range(40):
    name = f"{sys.argv[2]}-{number}"
    known = [f"{side}-{n}" for side in "ab" for n in range(40)]
    add_result(Path(sys.argv[1]), {"case": name, "outcome": "seen"}, known)
"""


def test_two_runs_at_once_lose_no_result(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    words = [sys.executable, "-c", ADD, str(file)]
    runs = [subprocess.Popen([*words, side], cwd=ROOT) for side in "ab"]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert len(read_results(file)) == 80
    assert list(tmp_path.iterdir()) == [file]


def test_a_result_of_no_case_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    write_results(file, {"gone": {"case": "gone"}})
    assert list(add_result(file, {"case": "here"}, ["here"])) == ["here"]
    assert list(read_results(file)) == ["here"]
