"""The folder of a model, found by its path or by the name of its run."""

import os
from pathlib import Path

import pytest

from vtool.diagnostics import Findings
from vtool.evaluation.exported import Export
from vtool.evaluation.subject import EvaluatedModel, find_folder, open_model


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder that has a run called `shapes`, and return the folder of that run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/shapes").mkdir(parents=True)
    return Path("runs/shapes")


def test_a_run_is_found_by_its_name(run: Path) -> None:
    assert find_folder("shapes") == run


def test_a_folder_of_rows_does_not_hide_the_run_of_its_name(run: Path) -> None:
    Path("shapes").mkdir()
    Path("shapes/train.jsonl").touch()
    assert find_folder("shapes") == run


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "config.yaml", "export"])
def test_the_folder_of_a_model_or_a_run_comes_before_the_run_of_its_name(
    run: Path, name: str
) -> None:
    Path("shapes").mkdir()
    Path("shapes", name).touch()
    assert find_folder("shapes") == Path("shapes")


def test_a_folder_that_is_no_models_is_not_asked_to_be_exported(run: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with pytest.raises(Findings) as caught:
        open_model("etc")
    (finding,) = caught.value.diagnostics
    assert finding.message.startswith("etc is not the folder of a model or a run: it has no config")
    Path(run, "checkpoints").mkdir()
    with pytest.raises(Findings) as caught:
        open_model("shapes")
    (finding,) = caught.value.diagnostics
    assert finding.message == "runs/shapes has no exported model"
    assert (finding.help or "").endswith("vtool export runs/shapes")


@pytest.mark.parametrize("name", ["generation_config.json", "model.safetensors", "notes.txt"])
@pytest.mark.parametrize("kind", ["pipe", "loop"])
def test_a_file_that_cannot_be_digested_is_a_finding(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "pipe":  # that nobody writes into
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to(name)
    model = EvaluatedModel(tmp_path, Export(tmp_path, tmp_path, "qwen2_5_vl"), None)
    with pytest.raises(Findings, match=rf"model-does-not-load.*{name} cannot be read: "):
        model.digest()
