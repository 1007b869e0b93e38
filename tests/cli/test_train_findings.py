"""Findings besides the training result are printed; an error among them sets the exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.rows import chat, write_rows
from vtool.cli.app import app
from vtool.diagnostics import Diagnostic
from vtool.training import launch
from vtool.training.sft import RunOutcome


@pytest.mark.parametrize(
    ("rule", "signal", "code"),
    [
        ("profile-missing", None, 1),
        ("tracker-failed", None, 0),
        ("profile-cut-short", 2, 130),
        ("profile-missing", 2, 130),
    ],
)
def test_an_error_is_the_exit_status_of_a_run_that_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, signal: int | None, code: int
) -> None:
    ledger = {"rows": 1, "dropped": 0, "distinct": 1, "samples": 1, "epochs": 1.0}
    (tmp_path / "result.json").write_text(json.dumps({"ledger": ledger}))
    outcome = RunOutcome(
        tmp_path,
        "stopped" if signal else "finished",
        3,
        6,
        signal,
        (Diagnostic(rule, "the disk was full"),),
    )

    def launched(*_: Any) -> RunOutcome:
        return outcome

    monkeypatch.setattr(launch, "launch", launched)
    command = ["train", "sft", "digits", f"run.dir={tmp_path / 'run'}", "--no-preflight"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == code
    assert "the disk was full" in done.stderr
    assert ("report: " in done.stdout) is (signal is None)


def test_a_finished_run_that_is_started_again_still_reports_its_errors(
    tmp_path: Path,
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [chat("2 + 2?", "4")])
    command = [
        *("train", "sft", "rows", f"data.train=[{{format: messages, path: {rows}}}]"),
        *("train={steps: 1, epochs: null}", "optim.warmup_steps=0", "--no-preflight"),
        f"run.dir={tmp_path / 'run'}",
    ]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, command).exit_code == 0
    file = tmp_path / "run" / "result.json"
    result = json.loads(file.read_text())
    result["checks"] |= {"profile-missing": "failed", "metrics-damaged": "failed"}
    file.write_text(json.dumps(result))
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "has finished its 1 steps already" in again.stdout
    assert "error[profile-missing VT820]" in again.stderr
    assert "metrics-damaged" not in again.stderr  # a warning


def test_a_recipe_in_the_place_of_the_command_is_answered_with_the_command() -> None:
    done = CliRunner().invoke(app, ["train", "my shapes.yaml", "train.steps=9"])
    assert done.exit_code == 2
    assert "vtool train sft 'my shapes.yaml' train.steps=9" in done.output


def test_processes_that_cannot_share_a_model_are_reported_before_anything_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "sft", "digits_megatron", "train.steps=9"])
    assert (done.exit_code, "parallel-sizes VT221" in done.output) == (1, True)
    assert "preflight" not in done.output
    assert not list(tmp_path.iterdir())
