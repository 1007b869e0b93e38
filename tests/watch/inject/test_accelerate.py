"""A loop with accelerate, by its own launcher and by torchrun: read, found, and not changed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtool.watch.conclude import conclude_folder
from vtool.watch.folder import WatchOptions, environment

SCRIPT = Path(__file__).parent / "accelerate_loop.py"
ACCELERATE = ["accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no"]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
MEANS = {("token-weights-differ", "error")}


def run(launcher: list[str], how: str, facts: Path | None) -> str:
    """Return the digest of the final weights."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("VTOOL_WATCH", "PYTHONPATH"))}
    own["OMP_NUM_THREADS"] = "1"
    if facts is not None:
        own = environment(facts, WatchOptions(), own)
    command = [sys.executable, "-m", *launcher, str(SCRIPT), how]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("launcher", "how", "found"),
    [(ACCELERATE, "mean", MEANS), (TORCHRUN, "mean", MEANS), (TORCHRUN, "tokens", set())],
    ids=["accelerate launch, mean", "torchrun, mean", "torchrun, tokens"],
)
def test_a_loop_with_accelerate_is_read_and_not_changed(
    tmp_path: Path, launcher: list[str], how: str, found: set[tuple[str, str]]
) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    assert run(launcher, how, tmp_path / "facts") == run(launcher, how, None)
    (result,) = conclude_folder(tmp_path / "facts", how, None)
    assert result.checks["targets-not-next"] == "passed"
    assert {(one.rule, one.severity) for one in result.findings} == found
    assert result.details["watch"]["ranks"] == (2 if launcher is TORCHRUN else 1)
