"""Runs that continue to a later end: the steps are the same rows, at a rate that is reported."""

import json
from pathlib import Path

import pytest

from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training.schedule import learning_rate
from vtool.training.sft import RunOutcome, train


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 8, text_only=(1,)))


def start(rows: Path, name: str, *more: str) -> RunOutcome:
    common = (
        *("data.global_batch_size=4", "data.image={min_pixels:784,max_pixels:784}"),
        *("device.threads=1", f"run.dir={rows.parent / name}"),
    )
    return train(request("rows", messages(rows), *common, *more), Ranks())


def steps(folder: Path, name: str) -> list[float]:
    lines = read_lines(folder / "metrics.jsonl")
    return [line[name] for line in lines if name in line]


def test_a_constant_rate_continues_as_if_the_end_had_always_been_there(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constant = ("optim.schedule=constant", "optim.warmup_steps=1")
    assert start(rows, "run", *constant, "train.steps=2").step == 2
    done = start(rows, "run", *constant, "train.steps=5", "checkpoint.resume=extend")
    assert (done.status, done.step) == ("finished", 5)
    out = capsys.readouterr().out
    assert "extended from 2 to 5 steps: the learning rate continues at 0.001 (constant)" in out
    start(rows, "straight", *constant, "train.steps=5")
    whole = rows.parent / "straight"
    assert steps(rows.parent / "run", "loss") == steps(whole, "loss")
    result = json.loads((rows.parent / "run/result.json").read_text())
    assert result["extended"][0]["planned_steps"] == 2
    assert (rows.parent / "run/result.until-000002.json").exists()
    # the command that made it, and the one without the word, find it finished
    for more in ((), ("checkpoint.resume=extend",)):
        assert start(rows, "run", *constant, "train.steps=5", *more).status == "already finished"


@pytest.mark.full
def test_a_falling_rate_is_planned_anew_and_the_jump_is_reported(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(rows, "run", "train.epochs=1")
    capsys.readouterr()
    done = start(rows, "run", "train.steps=6", "checkpoint.resume=extend")
    made = request("rows", messages(rows)).run.optim
    wanted = [learning_rate(made, step, 2) for step in (1, 2)]
    wanted += [learning_rate(made, step, 6) for step in (3, 4, 5, 6)]
    assert steps(rows.parent / "run", "lr") == pytest.approx(wanted, rel=1e-12)
    message = (
        f"learning rate of step 3 is {wanted[2]:.3g}, where the run had ended at {wanted[1]:.3g}"
    )
    assert done.step == 6
    assert message in capsys.readouterr().out


def test_an_end_that_is_no_later_and_other_settings_are_refused(rows: Path) -> None:
    start(rows, "run", "train.steps=3")
    before = (rows.parent / "run/config.yaml").read_bytes()
    for more in (("train.steps=2",), ("train.epochs=1.5",), ("train.steps=9", "optim.lr=1")):
        with pytest.raises(Findings, match="run-folder-taken"):
            start(rows, "run", "checkpoint.resume=extend", *more)
    with pytest.raises(Findings, match="run-folder-taken") as caught:
        start(rows, "run", "train.steps=9")
    assert "checkpoint.resume=extend" in caught.value.diagnostics[0].remedy
    assert (rows.parent / "run/config.yaml").read_bytes() == before
    assert (rows.parent / "run/result.json").exists()
