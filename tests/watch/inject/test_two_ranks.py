"""Two ranks: what each reads, and that a rank whose watch fails leaves nobody waiting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vtool
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

ROOT = Path(__file__).parents[3]
INJECT = Path(vtool.__file__).parent / "watch/inject"


def run(kind: str, facts: Path | None, broken: str = "") -> str:
    """Return the digest of the final weights."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("VTOOL_WATCH")}
    own["PYTHONPATH"] = os.pathsep.join([str(INJECT), str(ROOT)])
    if facts is not None:
        own |= {"VTOOL_WATCH_TO": str(facts), "VTOOL_WATCH_WAIT": "5" if broken else "100"}
    script = str(ROOT / "tests/watch/inject/two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node=2", script, kind, *filter(None, [broken])]
    done = subprocess.run(
        command, env=own, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_both_ranks_are_read_and_the_weights_are_the_same(tmp_path: Path, kind: str) -> None:
    assert run(kind, tmp_path / "facts") == run(kind, None)
    micro = tiny.facts(tmp_path / "facts", "micro")
    assert sorted({(f["rank"], f["step"]) for f in micro}) == [
        (rank, step) for rank in range(2) for step in range(3)
    ]
    assert all(f["not_next"] == 0 and f["read"] == f["supervised"] for f in micro)
    for step in range(3):
        mine = [f for f in micro if f["step"] == step]
        assert sum(f["sum"] for f in mine) / 2 == pytest.approx(1, abs=1e-6)
        arrived = [f for f in tiny.facts(tmp_path / "facts", "arrived") if f["step"] == step]
        ours = [sum(each) for each in zip(*(f["norm_sum"] for f in arrived), strict=True)]
        theirs = [
            next(value for value in each if value is not None)
            for each in zip(*(f["norm_gradient"] for f in arrived), strict=True)
        ]
        factor = sum(a * b for a, b in zip(ours, theirs, strict=True)) / sum(a * a for a in ours)
        assert factor == pytest.approx(0.5, abs=1e-6)
    assert tiny.facts(tmp_path / "facts", "error") == []


@pytest.mark.full
@pytest.mark.parametrize("kind", ["fsdp1", "fsdp1, flat parameters"])
def test_what_fsdp1_keeps_in_pieces_is_not_run_and_no_finding(tmp_path: Path, kind: str) -> None:
    assert run(kind, tmp_path / "facts") == run(kind, None)
    assert tiny.facts(tmp_path / "facts", "error") == []
    (result,) = conclude_folder(tmp_path / "facts", "fsdp1", None)
    assert (result.verdict, {one.rule for one in result.findings}) == ("not-run", {"nothing-read"})
    assert "in pieces by FSDP1" in result.findings[0].message


@pytest.mark.full
@pytest.mark.parametrize("broken", ["raises", "silent"])
def test_a_rank_whose_watch_fails_leaves_nobody_waiting(tmp_path: Path, broken: str) -> None:
    assert run("fsdp2", tmp_path / "facts", broken) == run("fsdp2", None)
    facts = tiny.facts(tmp_path / "facts")
    said = [f for f in facts if f["kind"] == "skipped" and f["what"] == "ranks"]
    assert 0 in {f["rank"] for f in said}
    if broken == "raises":
        assert [f["rank"] for f in facts if f["kind"] == "error"] == [1]
