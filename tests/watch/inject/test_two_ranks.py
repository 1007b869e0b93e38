"""Two ranks: what each reads, and that a rank whose watch fails leaves nobody waiting."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import ROOT, Forks, watched
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

SCRIPT = Path(__file__).parent / "two_ranks.py"


def run(forks: Forks, kind: str, facts: Path | None, *broken: str, wait: float = 100) -> str:
    """Return the digest of the final weights."""
    done = forks.run(SCRIPT, kind, *broken, facts=facts, ranks=2, VTOOL_WATCH_WAIT=str(wait))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.full
def test_torchruns_ranks_are_read_and_their_weights_are_the_same(
    tmp_path: Path, forks: Forks
) -> None:
    facts = tmp_path / "facts"
    own = watched(facts, VTOOL_WATCH_WAIT="100")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc_per_node=2", str(SCRIPT), "ddp"],
        env=own,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == run(forks, "ddp", None)
    are_read(facts)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_both_ranks_are_read_and_the_weights_are_the_same(
    tmp_path: Path, forks: Forks, kind: str
) -> None:
    assert run(forks, kind, tmp_path / "facts") == run(forks, kind, None)
    are_read(tmp_path / "facts")


def are_read(facts: Path) -> None:
    micro = tiny.facts(facts, "micro")
    assert sorted({(f["rank"], f["step"]) for f in micro}) == [
        (rank, step) for rank in range(2) for step in range(3)
    ]
    assert all(f["not_next"] == 0 and f["read"] == f["supervised"] for f in micro)
    for step in range(3):
        mine = [f for f in micro if f["step"] == step]
        assert sum(f["sum"] for f in mine) / 2 == pytest.approx(1, abs=1e-6)
        arrived = [f for f in tiny.facts(facts, "arrived") if f["step"] == step]
        ours = [sum(each) for each in zip(*(f["norm_sum"] for f in arrived), strict=True)]
        theirs = [
            next(value for value in each if value is not None)
            for each in zip(*(f["norm_gradient"] for f in arrived), strict=True)
        ]
        factor = sum(a * b for a, b in zip(ours, theirs, strict=True)) / sum(a * a for a in ours)
        assert factor == pytest.approx(0.5, abs=1e-6)
    assert tiny.facts(facts, "error") == []


@pytest.mark.full
@pytest.mark.parametrize("kind", ["fsdp1", "fsdp1, flat parameters"])
def test_what_fsdp1_keeps_in_pieces_is_not_run_and_no_finding(
    tmp_path: Path, forks: Forks, kind: str
) -> None:
    assert run(forks, kind, tmp_path / "facts") == run(forks, kind, None)
    assert tiny.facts(tmp_path / "facts", "error") == []
    (result,) = conclude_folder(tmp_path / "facts", "fsdp1", None)
    assert (result.verdict, {one.rule for one in result.findings}) == ("not-run", {"nothing-read"})
    assert "in pieces by FSDP1" in result.findings[0].message


@pytest.mark.full
@pytest.mark.parametrize("broken", ["raises", "silent"])
def test_a_rank_whose_watch_fails_leaves_nobody_waiting(
    tmp_path: Path, forks: Forks, broken: str
) -> None:
    watched = run(forks, "fsdp2", tmp_path / "facts", broken, wait=5)
    assert watched == run(forks, "fsdp2", None)
    facts = tiny.facts(tmp_path / "facts")
    skipped = [f for f in facts if f["kind"] == "skipped" and f["what"] == "ranks"]
    assert 0 in {f["rank"] for f in skipped}
    if broken == "raises":
        assert [f["rank"] for f in facts if f["kind"] == "error"] == [1]
