"""The Python that has vLLM, for every command alike."""

import sys
from pathlib import Path

import pytest

from vtool import vllm_python as module
from vtool.vllm_python import BUILT_PYTHON, VARIABLE, vllm_python


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to an empty folder, with a virtual environment that has no vLLM."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "checkout/.venv"))
    (tmp_path / "week").mkdir()
    monkeypatch.chdir(tmp_path / "week")


def built(folder: Path) -> str:
    (folder / BUILT_PYTHON).parent.mkdir(parents=True)
    (folder / BUILT_PYTHON).touch()
    return str(folder / BUILT_PYTHON)


def test_without_any_there_is_none() -> None:
    assert vllm_python() is None


def test_the_environment_next_to_vtools_own_is_found_from_any_folder(tmp_path: Path) -> None:
    assert vllm_python() is None
    beside = built(tmp_path / "checkout")
    assert vllm_python() == beside


def test_the_one_here_comes_first(tmp_path: Path) -> None:
    built(tmp_path / "checkout")
    built(tmp_path / "week")
    assert vllm_python() == str(BUILT_PYTHON)


def test_the_variable_comes_before_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path / "week")
    monkeypatch.setenv(VARIABLE, "/some/python")
    assert vllm_python() == "/some/python"


def test_this_python_is_taken_where_it_has_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path / "week")
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    assert vllm_python() == sys.executable
