"""What was found beside the training:

printed, and an error is the command's exit status, after all that the run made.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.diagnostics import Diagnostic
from vtool.training import launch
from vtool.training.sft import Outcome


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
    outcome = Outcome(
        tmp_path,
        "stopped" if signal else "finished",
        3,
        6,
        signal,
        (Diagnostic(rule, "the disk was full"),),
    )

    def launched(*_: Any) -> Outcome:
        return outcome

    monkeypatch.setattr(launch, "launch", launched)
    done = CliRunner().invoke(app, ["train", "sft", "digits", f"run.dir={tmp_path}"])
    assert done.exit_code == code
    assert "the disk was full" in done.stderr
    assert ("report: " in done.stdout) is (signal is None)
