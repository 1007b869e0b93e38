"""The command `vtool evaluate` on the short run, as a user types it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import run_vtool, vtool
from tests.runs import read_lines


@pytest.fixture
def beside(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A folder of a test's own with the run in it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(trained[0] / "runs" / "digits")
    return tmp_path


def test_a_run_has_the_scores_and_answers_that_its_training_ended_with(beside: Path) -> None:
    output = vtool(beside, "evaluate", "digits", "digits")
    result = json.loads((beside / "runs/digits/result.json").read_text())
    found = json.loads((beside / "evaluations/digits-digits/result.json").read_text())
    scores = {score["metric"]: score for score in found["scores"]}
    assert scores["exact"]["value"] == result["test_exact_match"]
    assert scores["nll"]["value"] == pytest.approx(result["test_nll"], rel=1e-5)
    assert f"{result['test_exact_match']:.2%}" in output
    assert "predictions: evaluations/digits-digits/predictions.jsonl" in output
    lines = read_lines(beside / "evaluations/digits-digits/predictions.jsonl")
    own = read_lines(beside / "runs/digits/predictions.jsonl")
    for one, other in zip(lines, own, strict=True):
        for key in ("row", "question", "reference", "answer"):
            assert one[key] == other[key]
        assert one["scores"]["exact"] == other["correct"]


@pytest.mark.full
def test_a_killed_evaluation_goes_on_where_it_was(beside: Path) -> None:
    command = [sys.executable, "-m", "vtool", "evaluate", "digits", "digits", "--batch", "1"]
    file = beside / "evaluations/digits-digits/predictions.jsonl"
    process = subprocess.Popen(command, cwd=beside, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") >= 5:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed before its end"
    had = file.read_bytes().count(b"\n")
    output = vtool(beside, "evaluate", "digits", "digits")
    assert f"{had} of 359 rows have answers" in output
    assert len(read_lines(file)) == 359


def test_findings_have_their_exit_status(beside: Path) -> None:
    evaluate = ("evaluate", "digits", "digits", "--limit", "8")
    output = vtool(beside, *evaluate, "--choices", "0,1,x", status=1)
    assert "reference-not-scorable" in output
    assert "note: no row's reference is the choice 1, x" in output
    output = vtool(beside, *evaluate, "--metric", "mine.py:points", status=2)
    assert "there is no file mine.py" in output
    output = vtool(beside, "evaluate", "digit", "digits", status=2)
    assert "did you mean `digits`" in output
    document = json.loads(run_vtool(beside, *evaluate, "--format", "json").stdout)
    (result,) = document["results"]
    assert result["details"]["evaluation"]["scores"][0]["rows"] == 8
