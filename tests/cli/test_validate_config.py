"""`vtool validate-config`, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config.load import ALWAYS_CHECKED


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["validate-config", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_recipe_without_a_finding_exits_0() -> None:
    assert run("digits") == (0, f"digits: no findings; checks: {len(ALWAYS_CHECKED)} passed\n", "")


def test_a_finding_exits_1_and_is_shown_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("defaults: [digits]\noptim:\n  lrr: 1\n")
    code, out, _ = run("mine.yaml")
    assert code == 1
    assert (
        "error[unknown-key VT101]: there is no setting `optim.lrr`\n  --> mine.yaml:3:3\n    3 |  "
        " lrr: 1\n          ^\n" in out
    )
    assert "help: did you mean `optim.lr`?" in out


def test_a_shipped_line_is_shown_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("digits", "launch.nproc=2")
    assert code == 0
    assert "micro_batch_size: 32\n" in out


def test_what_cannot_be_read_exits_2_and_counts_what_was_not_run() -> None:
    code, out, _ = run("digts")
    assert code == 2
    assert "help: did you mean `digits`?" in out
    assert (
        out.splitlines()[-1]
        == f"digts: 1 error; checks: 1 failed, {len(ALWAYS_CHECKED) - 1} not run"
    )


@pytest.mark.parametrize(
    ("arguments", "verdict", "code"),
    [(["digits"], "clean", 0), (["digits", "lr=1"], "unsafe", 1), (["digts"], "not-run", 2)],
)
def test_json_is_all_there_is_on_standard_output(
    arguments: list[str], verdict: str, code: int
) -> None:
    exit_code, out, _ = run(*arguments, "--format", "json")
    document = json.loads(out)
    assert exit_code == code
    assert document["tool"]["command"] == "validate-config"
    (result,) = document["results"]
    assert (result["subject"], result["verdict"]) == (arguments[0], verdict)
    assert list(result["checks"]) == list(ALWAYS_CHECKED)
    assert set(result["checks"].values()) <= {"passed", "failed", "not-run"}


def test_show_prints_a_recipe_and_nothing_else_on_standard_output() -> None:
    code, out, err = run("digits", "optim.lr=1e-3", "--show")
    assert code == 0
    assert yaml.safe_load(out)["optim"]["lr"] == 1e-3
    assert "  lr: 0.001  # command line\n" in out
    assert err.startswith("digits: no findings")


def test_show_has_nothing_to_show_of_what_cannot_be_run() -> None:
    code, out, err = run("digits", "lr=1", "--show")
    assert (code, out) == (1, "")
    assert "unknown-key" in err


def test_show_and_json_exclude_each_other() -> None:
    code, out, err = run("digits", "--show", "--format", "json")
    assert (code, out) == (2, "")
    assert "--show" in err


@pytest.mark.parametrize("format", ["json", "sarif"])
def test_documents_leave_no_room_for_show(format: str) -> None:
    assert run("digits", "--show", "--format", format)[:2] == (2, "")


def test_sarif_is_all_there_is_on_standard_output() -> None:
    code, out, _ = run("digits", "lr=1", "--format", "sarif")
    assert code == 1
    assert json.loads(out)["runs"][0]["results"][0]["ruleId"] == "VT101"


def test_github_has_a_command_for_each_finding() -> None:
    code, out, _ = run("digits", "lr=1", "--format", "github")
    assert code == 1
    assert out.startswith("::error title=unknown-key (VT101)::there is no setting `lr`")


def test_a_terminal_that_lacks_a_letter_does_not_end_the_command() -> None:
    command = [sys.executable, "-m", "vtool", "validate-config", "digits", "run.name='é'", "é=1"]
    done = subprocess.run(
        command,
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 2
    assert b"\\xe9" in done.stdout
    assert b"Traceback" not in done.stderr


def test_several_recipes_are_checked_at_once_as_a_hook_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("defaults: [digits]\n")
    Path("two.yml").write_text("defaults: [digits]\nnothing: 1\n")
    code, out, _ = run("one.yaml", "two.yml", "optim.lr=1", "--format", "json")
    assert code == 1
    assert [(result["subject"], result["verdict"]) for result in json.loads(out)["results"]] == [
        ("one.yaml", "clean"),
        ("two.yml", "unsafe"),
    ]
    assert run("one.yaml", "two.yml", "--show")[0] == 2


def test_a_recipe_whose_name_reads_as_a_setting_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("defaults: [digits]\n")
    Path("run.name=x.yaml").write_text("defaults: [digits]\nnothing: 1\n")
    code, out, _ = run("one.yaml", "run.name=x.yaml", "run.name=y.yaml", "--format", "json")
    assert code == 1
    assert [(result["subject"], result["verdict"]) for result in json.loads(out)["results"]] == [
        ("one.yaml", "clean"),
        ("run.name=x.yaml", "unsafe"),
    ]


def test_without_a_recipe_it_says_what_to_name() -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "name a recipe" in err


def test_a_mistake_that_all_runs_of_a_sweep_have_is_printed_once() -> None:
    code, out, _ = run("-m", "digits", "optim=nope", "train.steps=1,2")
    assert (code, out.count("there is none for `optim=nope`")) == (1, 1)
    assert "\n1 error (2 by subject); checks: " in out
    _, out, _ = run("-m", "digits", "optim=nope,none", "train.steps=1,2", "--format", "concise")
    assert [line.rpartition("`")[0][-4:] for line in out.splitlines()[:-1]] == ["nope", "none"]
    assert out.splitlines()[-1].startswith("2 errors (4 by subject); ")


@pytest.mark.parametrize(
    ("name", "content", "rule", "said"),
    [
        ("rows.jsonl", b"", "no-rows", "is empty, of 0 bytes"),
        ("rows.csv", b"a,b\n1,2\n", "broken-row", "is a table"),
        ("rows.json.gz", b"\x1f\x8b\x08\0", "broken-row", "packed with gzip"),
    ],
)
def test_rows_of_which_none_can_be_read_are_not_clean(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    rule: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    code, out, _ = run(name, "--format", "json")
    (result,) = json.loads(out)["results"]
    (finding,) = result["findings"]
    assert (code, result["verdict"], finding["rule"]) == (1, "unsafe", rule)
    assert said in finding["message"]
