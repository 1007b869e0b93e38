"""Digests of a checkpoint's files: each rank computes its share, and rank 0 decides."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.engines.ranks import run_ranks
from tests.training.test_checkpoint_files import write
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training import digests
from vtool.training.checkpoint import newest
from vtool.training.checkpoint_files import sha256_of
from vtool.training.digests import digest_here, files_by_rank, on_rank_zero_by_all


@pytest.mark.parametrize("world", [1, 8, 64, 1024])
def test_each_file_is_one_ranks_and_ranks_differ_by_one_file(world: int) -> None:
    sizes = {Path(f"{number:04d}"): number * 7919 % 1000 + 1 for number in range(3000)}
    shares = files_by_rank(sizes, world)
    assert len(shares) == world
    assert sorted(file for share in shares for file in share) == sorted(sizes)
    bytes_of = [sum(sizes[file] for file in share) for share in shares]
    assert max(bytes_of) - min(bytes_of) <= max(sizes.values())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    run_ranks(write, 2, folder)
    return folder


def look(ranks: Ranks, folder: Path, unreadable: int | None) -> tuple[str, list[str]]:
    """Return the problem found, and the files that this rank has read."""
    read: list[str] = []

    def noted(files: list[Path]) -> dict[Path, str]:
        read.extend(file.name for file in files)
        if ranks.rank == unreadable:
            raise FileNotFoundError(2, "No such file or directory", str(files[0]))
        return {file: sha256_of(file) for file in files}

    digests.digest_here = noted  # type: ignore[assignment]  # of this rank's own process
    try:
        found, damaged = on_rank_zero_by_all(ranks, partial(newest, folder))
    except Findings as findings:
        return " ".join(f"{one.rule}: {one.message}" for one in findings.diagnostics), read
    return f"{found and found.name} {[one.message for one in damaged]}", read


def test_every_file_is_read_by_one_rank_and_all_have_the_answer(written: Path) -> None:
    (first, own), (second, others) = run_ranks(look, 2, written, None)
    assert first == second == "step-000003 []"
    manifest = json.loads((written / "step-000003" / "manifest.json").read_text())
    assert sorted([*own, *others]) == sorted(manifest)
    assert abs(len(own) - len(others)) <= 1


def test_damage_in_another_ranks_share_is_reported_by_all(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "copy")
    path = folder / "step-000003"
    files = json.loads((path / "manifest.json").read_text())
    sizes = {path / name: entry["bytes"] for name, entry in files.items()}
    file = files_by_rank(sizes, 2)[1][0]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    reports = run_ranks(look, 2, folder, None)
    wanted = f"step-000002 ['{path}: {file.name} has other bytes than were written']"
    assert [each for each, _ in reports] == [wanted] * 2
    assert file.name in reports[1][1]
    assert file.name not in reports[0][1][: len(files) // 2]  # behind them, those of the older one


def test_what_one_rank_alone_cannot_read_is_no_damage(written: Path) -> None:
    """A run does not resume from an older checkpoint because one node has lost its disk."""
    reports = run_ranks(look, 2, written, 1)
    for each, _ in reports:
        assert each.startswith("corrupt-checkpoint: ")
        assert "is there on rank 0, and rank 1 cannot read it: No such file" in each
    missing, _ = run_ranks(look, 2, written, 0)[1]
    assert missing.startswith("None [")
    assert " is missing" in missing


def test_one_process_digests_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    files = [tmp_path / "a"]
    assert on_rank_zero_by_all(Ranks(), lambda ask: ask(files)) == digest_here(files)
