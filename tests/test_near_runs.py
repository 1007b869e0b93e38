"""The runs that are named where one is not there."""

import os
from pathlib import Path

import pytest

from tests.commands import vtool
from vtool.near_runs import runs_there


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(*names: str) -> None:
    for age, name in enumerate(names):
        folder = Path("runs", name)
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        os.utime(folder / "config.yaml", (1000 - age, 1000 - age))


def test_a_name_that_is_near_comes_alone_and_else_the_newest() -> None:
    assert runs_there(Path("runs/nope")) is None
    made("squares", "b", "c", "d", "e", "f", "g")
    Path("runs/no-run").mkdir()
    for given in ("runs/square", "square"):
        assert runs_there(Path(given)) == "did you mean `runs/squares`?"
    for given in ("runs/zzzz", "zzzz"):
        assert runs_there(Path(given)) == (
            "there are: runs/squares, runs/b, runs/c, runs/d, runs/e and 2 more"
        )


@pytest.mark.parametrize("command", ["export", "report", "predict"])
def test_a_run_that_is_not_there_is_answered_with_those_that_are(command: str) -> None:
    made("mine")
    said = vtool(Path(), command, "runs/zzzz", status=2)
    assert "there is no such folder" in said or "there is no folder runs/zzzz" in said
    assert "help: there are: runs/mine\n" in said
