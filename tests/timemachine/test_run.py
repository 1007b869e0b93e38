"""The outcome of a case, from the output of both sides."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import timemachine.__main__
from timemachine import run
from timemachine.__main__ import main
from timemachine.case import CASES, read_case, read_cases
from timemachine.environments import Environment, Tree
from timemachine.page import read_results, write_results
from timemachine.run import Side, _side, command_of, digest, outcome_of, run_case, variables_of

CASE = read_case(CASES / "transformers-34191.yaml")
WARNING = read_case(CASES / "trl-3200.yaml")
NOTHING = Side("ran", verdict="clean")


def spoke(rule: str, severity: str = "error") -> Side:
    finding = {"rule": rule, "severity": severity, "message": "…"}
    return Side("ran", verdict="unsafe", findings=(finding,))


@pytest.mark.parametrize(
    ("unsafe", "clean", "outcome"),
    [
        (spoke(CASE.rule), NOTHING, "seen"),
        (spoke(CASE.rule), spoke("loss-not-read", "warning"), "seen"),
        (spoke(CASE.rule, "warning"), NOTHING, "missed"),
        (NOTHING, NOTHING, "missed"),
        (spoke("targets-not-next"), NOTHING, "another rule: targets-not-next"),
        (spoke(CASE.rule), spoke("gradient-scaled"), "the clean side reports: gradient-scaled"),
        (
            Side("not-run", "no registry answers: x"),
            NOTHING,
            "not-run, the unsafe side: no registry",
        ),
        (spoke(CASE.rule), Side("crashed", "KeyError: 1"), "crashed, the clean side: KeyError"),
        (Side("does-not-import", "ImportError"), NOTHING, "does-not-import, the unsafe side"),
        (spoke(CASE.rule), Side("ran", verdict="not-run"), "not-run, the clean side"),
    ],
)
def test_a_case_is_seen_only_where_both_sides_say_what_they_ought_to(
    unsafe: Side, clean: Side, outcome: str
) -> None:
    assert outcome_of(CASE, {"unsafe": unsafe, "clean": clean}).startswith(outcome)


def test_a_case_of_a_warning_counts_warnings_on_both_sides() -> None:
    unsafe, other = spoke(WARNING.rule, "warning"), spoke("prompt-learnt", "warning")
    assert outcome_of(WARNING, {"unsafe": unsafe, "clean": NOTHING}) == "seen"
    assert outcome_of(WARNING, {"unsafe": unsafe, "clean": other}).startswith("the clean side")


DOCUMENT = {
    "tool": {"name": "vtool"},
    "results": [
        {
            "verdict": "unsafe",
            "findings": [{"rule": "gradient-scaled", "severity": "error", "message": "4 times"}],
        }
    ],
}


@pytest.mark.parametrize(
    ("status", "err", "state"),
    [
        (1, f"{{a step\nloss 3\n{json.dumps(DOCUMENT, indent=1)}\n", "ran"),
        (1, "Traceback (most recent call last):\n  …\nValueError: no\n", "crashed"),
        (1, "Traceback (most recent call last):\n  …\nImportError: no name X\n", "does-not-import"),
        (-9, "", "crashed"),
    ],
)
def test_what_a_side_printed_is_read(status: int, err: str, state: str) -> None:
    side = _side(status, 1.5, "", err, {})
    assert (side.state, side.exit, side.cpu_seconds) == (state, status, 1.5)
    assert [one["rule"] for one in side.findings] == ["gradient-scaled"] * (state == "ran")
    assert bool(side.reason) == (state != "ran")


def document(name: str, **details: object) -> str:
    result = {**DOCUMENT["results"][0], "details": details}  # type: ignore[dict-item]
    tool = {"name": "vtool", "command": name}
    return json.dumps({"tool": tool, "results": [result]}, indent=1)


CAUGHT = "Traceback (most recent call last):\n  …\nOSError: no tokenizer here, going on\n"


@pytest.mark.parametrize(
    ("status", "printed", "state"),
    [
        (1, document("watch", command={"status": 0}), "ran"),  # 1 is of what was found
        (0, document("watch", command={"status": 0}), "ran"),
        (1, document("watch", command={"status": 1}), "crashed"),
        (137, document("watch", command={"status": 137}), "crashed"),
        (1, document("load-check"), "ran"),
        (139, document("load-check"), "crashed"),
        (0, document("compare"), "ran"),
        (1, document("compare"), "crashed"),
    ],
)
def test_a_traceback_that_was_caught_is_no_crash(status: int, printed: str, state: str) -> None:
    side = _side(status, 1.5, "", f"{CAUGHT}{printed}\n", {})
    assert side.state == state
    assert side.reason == ("" if state == "ran" else "OSError: no tokenizer here, going on")


@pytest.mark.full
def test_a_watched_script_that_continues_has_run_and_one_that_ends_has_crashed(
    tmp_path: Path,
) -> None:
    script = (
        "import torch, traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\n"
    )
    sides = {}
    for name, more in (("caught", ""), ("raised", "raise KeyError('end')\n")):
        (tmp_path / f"{name}.py").write_text(script + more)
        words = [sys.executable, "-m", "vtool", "watch", "--format", "json"]
        words += ["--to", f"facts-{name}", "--", sys.executable, f"{name}.py"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        sides[name] = _side(done.returncode, 1.0, done.stdout, done.stderr, {})
    assert sides["caught"].state == "ran"
    assert (sides["raised"].state, sides["raised"].reason) == ("crashed", "KeyError: 'end'")


def test_the_command_has_the_interpreter_of_its_side(tmp_path: Path) -> None:
    tree = Tree("verl==0.5.0", "verl.whl", "0", tmp_path)
    case = read_case(CASES / "verl-3332.yaml")
    words = command_of(case, Environment(tmp_path / "bin/python", (tree,), {}), tmp_path)
    assert words[1:4] == ["-m", "vtool", "watch"]
    assert words[words.index("--") + 1 :] == [
        str(tmp_path / "bin/python"),
        str(CASES / "verl_fsdp_sft.py"),
        str(tmp_path),
    ]


def test_each_wheel_has_a_variable_for_scripts_that_are_imported(tmp_path: Path) -> None:
    tree = Tree("ms-swift==4.0.0", "swift.whl", "0", tmp_path)
    environment = Environment(tmp_path / "bin/python", (tree,), {})
    assert variables_of(environment) == {"WHEEL_MS_SWIFT": str(tmp_path)}


def test_a_checkout_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["verl-5942", "--checkout", "verl=no-such-folder"])
    assert "no NAME=DIR of a folder" in capsys.readouterr().err


def test_without_its_repository_a_case_keeps_the_result_that_it_has(tmp_path: Path) -> None:
    (case,) = read_cases(["verl-5942"])
    assert case.lacks([])
    assert not case.lacks(["verl"])
    assert not any(one.lacks([]) for one in read_cases(["verl-5881"]))
    kept = {"case": case.name, "outcome": "seen", "sides": {}}
    write_results(tmp_path / "results.json", {case.name: kept})
    words = [case.name, "--cache", str(tmp_path), "--to", str(tmp_path / "results.json")]
    assert main(words) == 0
    assert read_results(tmp_path / "results.json") == {case.name: kept}
    (tmp_path / "results.json").unlink()
    assert main(words) == 1


def test_results_that_cannot_be_written_are_reported_and_those_before_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = read_cases(["verl-5942"])
    file = tmp_path / "results.json"
    write_results(file, {"peft-2195": {"case": "peft-2195", "outcome": "seen", "sides": {}}})
    before = file.read_text()
    (tmp_path / f"results.json.{os.getpid()}.part").mkdir()  # where the new ones would be written
    words = [case.name, "--cache", str(tmp_path / "cache"), "--to", str(file)]
    assert main(words) == 2
    assert "time machine: " in capsys.readouterr().err
    assert file.read_text() == before


def test_what_was_run_with_this_code_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side = {"state": "ran", "cpu_seconds": 1.0, "findings": []}
    result = {"case": CASE.name, "outcome": "seen", "sides": {"unsafe": side, "clean": side}}
    kept = tmp_path / f"cache/results/{CASE.name}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"digest": digest(CASE), "result": result}))
    words = [CASE.name, "--cache", str(tmp_path / "cache"), "--to", str(tmp_path / "results.json")]
    assert main(words) == 0
    assert "seen (2.0 s of CPU, not run again)" in capsys.readouterr().out
    assert read_results(tmp_path / "results.json") == {CASE.name: result}


def test_a_case_that_changes_is_run_again() -> None:
    assert digest(CASE) != digest(CASE.model_copy(update={"rule": "gradient-scaled"}))
    assert digest(CASE) == digest(read_case(CASES / "transformers-34191.yaml"))


def test_a_table_that_a_command_reads_makes_cases_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "vtool").mkdir()
    (tmp_path / "vtool/twins.json").write_text("{}")
    before = digest(CASE)
    assert digest(CASE) == before
    (tmp_path / "vtool/twins.json").write_text('{"Qwen3VL": {}}')
    assert digest(CASE) != before


def test_another_file_that_is_no_case_is_reported_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(names: object = ()) -> list[object]:
        if not names:
            raise ValueError("other.yaml: is no mapping")
        return [CASE]

    monkeypatch.setattr(timemachine.__main__, "read_cases", read)
    assert main([CASE.name]) == 2
    assert capsys.readouterr().err == "time machine: other.yaml: is no mapping\n"


def test_a_name_that_no_case_has_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere"]) == 2
    assert "there is no case nowhere" in capsys.readouterr().err


@pytest.mark.full
def test_without_a_registry_a_case_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Mapping[str, str] = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    result = run_case(CASE, tmp_path)
    assert result["outcome"].startswith("not-run, the unsafe side: no registry answers"), result


@pytest.mark.full
def test_a_case_is_run_from_its_wheels(tmp_path: Path) -> None:
    (case,) = read_cases(["transformers-34191"])
    result = run_case(case, tmp_path)
    if result["outcome"].startswith("not-run"):
        pytest.skip(f"not run: {result['outcome']}")
    assert result["outcome"] == "seen"
    assert result["sides"]["unsafe"]["versions"]["transformers"] == "4.45.2"
