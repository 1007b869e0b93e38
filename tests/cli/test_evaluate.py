"""The command `vtool evaluate` on the short run, as a user types it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import run_vtool, vtool
from tests.runs import read_lines


@pytest.fixture
def work(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A folder of a test's own with the run in it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(trained[0] / "runs" / "digits")
    return tmp_path


def test_a_run_has_the_scores_and_answers_that_its_training_ended_with(work: Path) -> None:
    output = vtool(work, "evaluate", "digits", "digits")
    result = json.loads((work / "runs/digits/result.json").read_text())
    found = json.loads((work / "evaluations/digits-digits/result.json").read_text())
    scores = {score["metric"]: score for score in found["scores"]}
    assert scores["exact"]["value"] == result["test_exact_match"]
    assert scores["nll"]["value"] == pytest.approx(result["test_nll"], rel=1e-5)
    assert f"{result['test_exact_match']:.2%}" in output
    assert "predictions: evaluations/digits-digits/predictions.jsonl" in output
    assert "report: evaluations/digits-digits/report.html" in output
    page = work / "evaluations/digits-digits/report.html"
    written = page.read_bytes()
    page.unlink()
    assert vtool(work, "report", "evaluations/digits-digits").split() == [
        "evaluations/digits-digits/report.html"
    ]
    assert page.read_bytes() == written
    lines = read_lines(work / "evaluations/digits-digits/predictions.jsonl")
    own = read_lines(work / "runs/digits/predictions.jsonl")
    for one, other in zip(lines, own, strict=True):
        for key in ("row", "question", "reference", "answer"):
            assert one[key] == other[key]
        assert one["scores"]["exact"] == other["correct"]


@pytest.mark.full
def test_a_killed_evaluation_resumes_where_it_was(work: Path) -> None:
    command = [sys.executable, "-m", "vtool", "evaluate", "digits", "digits", "--batch", "1"]
    file = work / "evaluations/digits-digits/predictions.jsonl"
    process = subprocess.Popen(command, cwd=work, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") >= 5:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed before its end"
    had = file.read_bytes().count(b"\n")
    output = vtool(work, "evaluate", "digits", "digits")
    assert f"{had} of 359 rows have answers" in output
    assert len(read_lines(file)) == 359


@pytest.mark.full
def test_ranks_of_its_own_give_the_same_answers_and_scores(work: Path) -> None:
    asked = ("evaluate", "digits", "digits", "--limit", "21")
    vtool(work, *asked, "--to", "one")
    output = vtool(work, *asked, "--nproc", "2", "--to", "two")
    one, two = (read_lines(work / name / "predictions.jsonl") for name in ("one", "two"))
    for mine, other in zip(one, two, strict=True):
        assert mine["nll"] == pytest.approx(other["nll"], rel=1e-5)
        assert mine["scores"] == other["scores"]
        assert mine["answer"] == other["answer"]
    assert "report: two/report.html" in output
    assert not list((work / "two").glob("predictions.rank-*"))
    shutil.copytree(work / "runs/digits/export", work / "broken")
    (work / "broken/model.safetensors").write_bytes(b"no tensors")
    output = vtool(work, "evaluate", "broken", "digits", "--nproc", "2", status=2)
    assert output.count("error[model-does-not-load") == 1


def test_processes_are_not_started_within_processes_nor_for_what_cannot_be_asked(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = vtool(work, "evaluate", "nothing", "digits", "--nproc", "2", status=2)
    assert output.count("error[") == output.count("error[not-a-run") == 1
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    output = vtool(work, "evaluate", "digits", "digits", "--nproc", "2", status=2)
    assert "has started 2 processes already (RANK=0, WORLD_SIZE=2)" in output


@pytest.mark.full
def test_findings_have_their_exit_status(work: Path) -> None:
    evaluate = ("evaluate", "digits", "digits", "--limit", "8")
    output = vtool(work, *evaluate, "--choices", "0,1,x", status=1)
    assert "reference-not-scorable" in output
    assert "note: no row's reference is the choice 1, x" in output
    output = vtool(work, *evaluate, "--metric", "mine.py:points", status=2)
    assert "there is no file mine.py" in output
    output = vtool(work, *evaluate, "metric=mine.py:points", status=2)
    assert "help: write --metric mine.py:points" in output
    output = vtool(work, "evaluate", "digits", "none.jsonl", status=2)
    assert "error[path-not-found VT207]: none.jsonl is not there" in output
    output = vtool(work, "evaluate", "digit", "digits", status=2)
    assert "did you mean `runs/digits`" in output
    document = json.loads(run_vtool(work, *evaluate, "--format", "json").stdout)
    (result,) = document["results"]
    assert result["details"]["evaluation"]["scores"][0]["rows"] == 8
