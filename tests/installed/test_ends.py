"""vtool with the oldest and the newest releases that it is for, in environments of their own.

`make test-oldest` and `make test-newest` make them, and run the other tests in them too.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.installed.environments import ROOT, checked, run
from vtool.families import FAMILIES

PYTHONS = {
    end: Path(os.environ.get(f"VTOOL_{end.upper()}_PYTHON") or ROOT / f".{end}-venv/bin/python")
    for end in ("oldest", "newest")
}
RUN = ("train", "sft", "digits", "train.steps=20", "optim.warmup_steps=5", "run.name=run")
EVERY = "checkpoint.every_steps=10"


def python_of(end: str) -> str:
    python = PYTHONS[end]
    if not python.exists():
        pytest.skip(f"not run: there is no environment of `make test-{end}`")
    return str(python)


def losses(folder: Path) -> dict[int, float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


FULL, SOAK = pytest.mark.full, pytest.mark.soak


@pytest.mark.parametrize("end", PYTHONS)
@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=FULL if one == "qwen2_5_vl" else SOAK) for one in FAMILIES],
)
def test_every_fast_proof_of_a_family_holds_and_is_no_looser(
    end: str, family: str, tmp_path: Path
) -> None:
    there, here = (proved(python, family, tmp_path) for python in (python_of(end), sys.executable))
    assert there["verdict"] == "clean"
    assert there["checks"] == here["checks"]
    for rule, details in here["details"].items():
        if "tolerance" in details:
            assert there["details"][rule]["tolerance"] <= 1.5 * details["tolerance"], rule


def proved(python: str, family: str, folder: Path) -> dict[str, Any]:
    command = ["-m", "vtool", "verify", "digits", "--fast", f"model.family={family}"]
    document = json.loads(checked(python, *command, "--format", "json", cwd=folder))
    (result,) = document["results"]
    assert isinstance(result, dict)
    return result


@pytest.mark.soak
@pytest.mark.parametrize("end", PYTHONS)
@pytest.mark.parametrize("ours_first", [True, False], ids=["goes on there", "goes on here"])
def test_a_run_resumes_in_the_other_environment(end: str, ours_first: bool, tmp_path: Path) -> None:
    """The steps after the checkpoint are those that would have followed without the change."""
    pythons = [sys.executable, python_of(end)] if ours_first else [python_of(end), sys.executable]
    first, then = ([python, "-m", "vtool", *RUN, EVERY, "--no-preflight"] for python in pythons)
    (tmp_path / "whole").mkdir()
    checked(*first, cwd=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "moved")
    half = tmp_path / "moved/runs/run"
    shutil.rmtree(half / "checkpoints/step-000020")
    shutil.rmtree(half / "export")
    (half / "result.json").unlink()
    done = run(*then, cwd=tmp_path / "moved")
    assert done.returncode == 0, done.stderr
    assert "step 10" in done.stdout
    whole, moved = losses(tmp_path / "whole/runs/run"), losses(half)
    assert list(moved) == list(whole)
    for step in range(11, 21):
        assert moved[step] == pytest.approx(whole[step], rel=1e-4), step
