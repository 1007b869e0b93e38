"""Results as they are printed: for reading, a line each, and for programs."""

import io
import json
from pathlib import Path

import pytest

from vtool import __version__
from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.render import render_results
from vtool.diagnostics.result import Result, exit_code

ERROR = Diagnostic(
    "unknown-key",
    "there is no setting `optim.lrr`",
    "did you mean `optim.lr`?",
    "optim.lrr",
    Origin("mine.yaml", 2, 3),
    seen="1",
)
NOTE = Diagnostic("ignored-setting", "model.size has no effect", origin=Origin("command line"))
UNSAFE = Result(
    "mine",
    "unsafe",
    {"unknown-key": "failed", "ignored-setting": "passed", "warmup-too-long": "not-run"},
    (ERROR, NOTE),
)
CLEAN = Result("digits", "clean", {"unknown-key": "passed"})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(*results: Result, format: str = "full", stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    render_results(results, format, command="validate-config", stream=stream)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    Path("mine.yaml").write_text("optim:\n  lrr: 1\n")


def test_full_shows_the_rule_the_place_the_line_and_what_to_do() -> None:
    assert (
        printed(UNSAFE) == "error[unknown-key VT101]: there is no setting `optim.lrr`\n"
        "  --> mine.yaml:2:3\n"
        "    2 |   lrr: 1\n"
        "          ^\n"
        "  help: did you mean `optim.lr`?\n"
        "\n"
        "note[ignored-setting VT211]: model.size has no effect\n"
        "  --> command line\n"
        "  help: Leave it out, or set it to null. (vtool explain ignored-setting)\n"
        "\n"
        "not run, because of the above: warmup-too-long\n"
        "mine: 1 error, 1 note; checks: 1 passed, 1 failed, 1 not run\n"
    )


@pytest.mark.parametrize(
    ("count", "end"),
    [(12, "rule-10, rule-11"), (20, "rule-5 and 14 more, which --format json names")],
)
def test_of_many_rules_that_were_not_run_the_first_are_named(count: int, end: str) -> None:
    checks = {"unknown-key": "failed"} | {f"rule-{number}": "not-run" for number in range(count)}
    found = printed(Result("mine", "unsafe", checks, (ERROR,)))
    (line,) = [line for line in found.splitlines() if line.startswith("not run")]
    assert line.startswith("not run, because of the above: rule-0, rule-1, ")
    assert line.endswith(end)


def test_what_was_not_run_has_its_reason_where_one_is_known() -> None:
    checks = {"bad-header": "not-run", "missing-shard": "not-run", "no-config": "passed"}
    details = {
        rule: {"reason": "one file was asked for"} for rule in ("bad-header", "missing-shard")
    }
    assert (
        printed(Result("a", "clean", checks, (), details)).splitlines()[0]
        == "not run: bad-header, missing-shard (one file was asked for)"
    )


def test_a_file_that_is_gone_costs_the_excerpt_only() -> None:
    Path("mine.yaml").unlink()
    assert "  --> mine.yaml:2:3\n  help:" in printed(UNSAFE)


def test_a_line_as_long_as_a_row_is_cut_around_the_place() -> None:
    Path("mine.yaml").write_text("\n" + "x" * 500 + "Y" + "x" * 500)
    finding = Diagnostic("unknown-key", "here", origin=Origin("mine.yaml", 2, 501))
    excerpt, caret = printed(Result("mine", "unsafe", {}, (finding,))).splitlines()[2:4]
    assert len(excerpt) < 140
    assert excerpt[caret.index("^")] == "Y"


def test_concise_is_a_line_for_each_finding() -> None:
    assert (
        printed(UNSAFE, format="concise")
        == "mine.yaml:2:3: error unknown-key (VT101): there is no setting `optim.lrr`\n"
        "command line: note ignored-setting (VT211): model.size has no effect\n"
        "mine: 1 error, 1 note; checks: 1 passed, 1 failed, 1 not run\n"
    )


def test_json_is_what_the_design_says() -> None:
    assert json.loads(printed(UNSAFE, CLEAN, format="json")) == {
        "version": 1,
        "tool": {"name": "vtool", "version": __version__, "command": "validate-config"},
        "results": [
            {
                "subject": "mine",
                "verdict": "unsafe",
                "checks": {
                    "unknown-key": "failed",
                    "ignored-setting": "passed",
                    "warmup-too-long": "not-run",
                },
                "findings": [
                    {
                        "code": "VT101",
                        "rule": "unknown-key",
                        "severity": "error",
                        "message": "there is no setting `optim.lrr`",
                        "help": "did you mean `optim.lr`?",
                        "parameter": "optim.lrr",
                        "seen": "1",
                        "origin": {"file": "mine.yaml", "line": 2, "column": 3},
                    },
                    {
                        "code": "VT211",
                        "rule": "ignored-setting",
                        "severity": "note",
                        "message": "model.size has no effect",
                        "origin": {"file": "command line"},
                    },
                ],
            },
            {
                "subject": "digits",
                "verdict": "clean",
                "checks": {"unknown-key": "passed"},
                "findings": [],
            },
        ],
        "summary": {"errors": 1, "warnings": 0, "notes": 1, "passed": 2, "failed": 1, "not_run": 1},
    }


def test_color_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in printed(UNSAFE)
    assert "\x1b[" in printed(UNSAFE, stream=Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in printed(UNSAFE, stream=Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in printed(UNSAFE, stream=Terminal())


def test_exit_codes() -> None:
    not_run = Result("x", "not-run", {"unknown-key": "not-run"}, (ERROR,))
    noted = Result("x", "clean", {}, (NOTE,))
    assert exit_code([CLEAN]) == exit_code([noted]) == 0
    assert exit_code([CLEAN, UNSAFE]) == exit_code([CLEAN, not_run]) == 1
    assert exit_code([not_run]) == 2
