"""Megatron-core's own model, DDP and optimizer under the watch, its head cut over two ranks or not.

What is learnt is known: the loop draws its rows from a seed, and learns each row's last tokens.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vtool
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

pytest.importorskip("megatron.core", reason="pip install 'vtool[megatron]'")
ROOT = Path(__file__).parents[3]
INJECT = Path(vtool.__file__).parent / "watch/inject"
KINDS = [
    pytest.param("tensor", marks=pytest.mark.full),
    pytest.param("data", marks=pytest.mark.soak),
]


def run(facts: Path | None, *arguments: str) -> str:
    """Return the digest of the final weights."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("VTOOL_WATCH")}
    own |= {"PYTHONPATH": os.pathsep.join([str(INJECT), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    if facts is not None:
        own["VTOOL_WATCH_TO"] = str(facts)
    script = str(ROOT / "tests/watch/inject/megatron_loop.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc_per_node=2", script, *arguments],
        env=own,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_read_over_its_ranks_and_not_changed(tmp_path: Path, kind: str) -> None:
    facts = tmp_path / "facts"
    assert run(facts, kind) == run(None, kind)
    assert tiny.facts(facts, "error") == []
    micros = tiny.facts(facts, "micro")
    assert len(micros) == 2 * 3 * 2  # ranks, steps, micro-batches
    assert all(f["read"] == f["supervised"] > 0 and f["not_next"] == 0 for f in micros)
    for rank in range(2):
        for step in range(3):
            mine = [f["sum"] for f in micros if (f["rank"], f["step"]) == (rank, step)]
            assert sum(mine) == pytest.approx(1, abs=1e-5)
    (result,) = conclude_folder(facts, kind, None)
    assert (result.verdict, result.findings) == ("clean", ())


@pytest.mark.parametrize("kind", KINDS)
def test_a_mean_of_means_is_found(tmp_path: Path, kind: str) -> None:
    run(tmp_path / "facts", kind, "mean-of-means")
    (result,) = conclude_folder(tmp_path / "facts", kind, None)
    ((rule, message),) = [(one.rule, one.message) for one in result.findings]
    assert rule == "token-weights-differ"
    assert "1.4444 times" in message  # 13 / 9 learnt tokens of the two micro-batches
