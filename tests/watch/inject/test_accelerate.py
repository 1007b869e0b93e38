"""A loop with accelerate, by its own launcher and by torchrun: read, found, and not changed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import ROOT, Forks, watched
from vtool.watch.conclude import conclude_folder

SCRIPT = Path(__file__).parent / "accelerate_loop.py"
ACCELERATE = ["accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no"]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
MEANS = {("token-weights-differ", "error")}


def launch(launcher: list[str], how: str, facts: Path) -> str:
    """Return the digest of the final weights, under the watch."""
    command = [sys.executable, "-m", *launcher, str(SCRIPT), how]
    done = subprocess.run(
        command, env=watched(facts), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def fork(forks: Forks, ranks: int, how: str, facts: Path | None) -> str:
    """Return the same of ranks that are forked."""
    done = forks.run(SCRIPT, how, facts=facts, ranks=ranks)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("launcher", "ranks", "how", "found"),
    [
        pytest.param(ACCELERATE, 1, "mean", MEANS, id="accelerate launch, mean"),
        pytest.param(TORCHRUN, 2, "mean", MEANS, id="torchrun, mean", marks=pytest.mark.soak),
        pytest.param(None, 2, "mean", MEANS, id="two ranks, mean"),
        pytest.param(None, 2, "tokens", set(), id="two ranks, tokens"),
    ],
)
def test_a_loop_with_accelerate_is_read_and_not_changed(
    tmp_path: Path,
    trainer_forks: Forks,
    launcher: list[str] | None,
    ranks: int,
    how: str,
    found: set[tuple[str, str]],
) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    facts = tmp_path / "facts"
    if launcher is None:
        digest = fork(trainer_forks, ranks, how, facts)
    else:
        digest = launch(launcher, how, facts)
    assert digest == fork(trainer_forks, ranks, how, None)
    (result,) = conclude_folder(facts, how, None)
    assert result.checks["targets-not-next"] == "passed"
    assert {(one.rule, one.severity) for one in result.findings} == found
    assert result.details["watch"]["ranks"] == ranks
