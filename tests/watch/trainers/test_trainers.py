"""Trainers by their own command lines: read, their weights the same to the bit, mistakes found."""

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.watch.trainers.runs import HERE, RUNS, Run
from vtool.diagnostics.result import Result
from vtool.watch.conclude import conclude_folder
from vtool.watch.folder import WatchOptions, watched_environment


def run(one: Run, made: Path, to: Path, facts: Path | None) -> dict[str, bytes]:
    """Return the bytes of each final weight."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("VTOOL_WATCH", "PYTHON"))}
    own |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **one.environment}
    own["PATH"] = f"{one.python.parent}{os.pathsep}{own['PATH']}"  # as it is when activated
    if facts is not None:
        own = watched_environment(facts, WatchOptions(), own)
    done = subprocess.run(
        one.command(made, to), env=own, cwd=to.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    files = sorted((to / "out").rglob("*model.safetensors"))
    tensors = {k: v for file in files for k, v in load_file(file).items()}
    return {k: v.view(torch.uint8).numpy().tobytes() for k, v in tensors.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], Path]:
    @cache
    def make(trainer: str, python: Path) -> Path:
        folder = tmp_path_factory.mktemp(trainer)
        script = str(HERE / "tiny_model.py")
        subprocess.run([str(python), script, str(folder)], check=True, capture_output=True)
        return folder

    return lambda one: make(one.trainer, one.python)


@pytest.mark.soak
@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_is_read_and_not_changed(
    tmp_path: Path, made: Callable[[Run], Path], name: str
) -> None:
    one = RUNS[name]
    if not one.python.is_file():
        pytest.skip(f"not run: {one.trainer} is not installed (make trainers-env)")
    folder = made(one)
    weights = run(one, folder, tmp_path / "watched", tmp_path / "facts")
    (result,) = conclude_folder(tmp_path / "facts", name, folder / "model")
    assert is_read(result) == one.read
    assert {(each.rule, each.severity) for each in result.findings} == one.found, result.findings
    assert weights
    assert weights == run(one, folder, tmp_path / "plain", None)


def is_read(result: Result) -> bool:
    return result.checks["targets-not-next"] != "not-run"
