"""Each rank writes whole tensors of its own, and any number of ranks reads them."""

import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engines.ranks import run_ranks
from tests.engines.state import held
from vtool.diagnostics import Findings
from vtool.engines.contract import to_all_ranks
from vtool.engines.ranks import Ranks
from vtool.loading.checkpoint.audit import audit_folder
from vtool.training import checkpoint_files
from vtool.training.checkpoint import (
    Snapshot,
    checkpoints,
    find_damage,
    newest,
    open_checkpoint,
    save,
)
from vtool.training.checkpoint_files import Shares, tensor_files
from vtool.training.checkpoint_writer import CheckpointWriter

SIZES = (700, 1, 300, 300, 50, 900, 20, 5)


def tensors(step: int, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield float32 tensors of the sizes, that each rank computes alike."""
    made = torch.Generator().manual_seed(step)
    for number, size in enumerate(SIZES):
        yield f"{prefix}{number}", torch.randn(size, generator=made)


def snapshot(step: int, rank: int = 0) -> Snapshot:
    return Snapshot(
        step,
        held(tensors(step, "w"), rank),
        held(tensors(-step, "m"), rank),
        torch.arange(9),
        {"seconds": 1.0},
    )


def write(
    ranks: Ranks, folder: Path, asynchronous: bool = False, file_bytes: int = 4 * 400
) -> None:
    checkpoint_files.FILE_BYTES = file_bytes  # of this rank's own process
    with CheckpointWriter(folder, 2, asynchronous=asynchronous, ranks=ranks) as writer:
        for step in (1, 2, 3):
            writer.save(snapshot(step, ranks.rank))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_write_what_one_process_would_read(
    tmp_path: Path, world: int, asynchronous: bool
) -> None:
    run_ranks(write, world, tmp_path, asynchronous)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000002", "step-000003"]
    path = tmp_path / "step-000003"
    assert find_damage(path) is None
    found, made = open_checkpoint(path), snapshot(3)
    assert torch.equal(found.visits, made.visits)
    for own, wanted in (
        (found.model, dict(made.model(to_all_ranks))),
        (found.optimizer, dict(made.optimizer(to_all_ranks))),
    ):
        assert own.keys() == wanted.keys()
        assert all(torch.equal(own[name], wanted[name]) for name in wanted)
    files = sorted(path.glob("model-*.safetensors"))
    assert len(files) >= world
    assert [file.name for file in files] == [
        f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)
    ]
    index = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    assert {file.name: sorted(load_file(file)) for file in files} == {
        file.name: sorted(name for name in index if index[name] == file.name) for file in files
    }
    # a checkpoint has no config.json: whoever opens it as a model gives one
    assert {finding.rule for finding in audit_folder(path).findings} == {"no-config"}


@pytest.mark.parametrize("world", [1, 2, 3, 8, 64, pytest.param(1024, marks=pytest.mark.full)])
def test_each_tensor_has_one_owner_and_the_shares_are_of_one_size(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 1000)
    sizes = [(number * 7919) % 1000 + 1 for number in range(1500)]
    shares, again = Shares(world), Shares(world)
    owners = [shares(size) for size in sizes]
    assert owners == [again(size) for size in sizes]  # on any rank
    assert set(owners) == set(range(world))
    share = [0] * world
    for owner, size in zip(owners, sizes, strict=True):
        share[owner] += size
    assert max(share) - min(share) <= max(sizes)


def test_a_small_checkpoint_of_several_ranks_is_one_file_of_each_kind(tmp_path: Path) -> None:
    run_ranks(write, 2, tmp_path, False, 2**20)
    names = {file.name for file in (tmp_path / "step-000003").glob("*.safetensors")}
    assert names == {"model.safetensors", "optimizer.safetensors", "progress.safetensors"}


def test_a_rank_holds_no_more_than_a_file_and_a_tensor_at_once(tmp_path: Path) -> None:
    run_ranks(write, 2, tmp_path, False, 4 * 100)
    path = tmp_path / "step-000003"
    held = [
        sum(tensor.nbytes for tensor in load_file(file).values())
        for file in path.glob("model-*.safetensors")
    ]
    assert len(held) > 2
    assert max(held) <= 4 * (100 + max(SIZES))
    assert open_checkpoint(path).model.keys() == dict(tensors(3, "w")).keys()


def failing(ranks: Ranks, folder: Path, asynchronous: bool, full: int) -> list[str]:
    """Write a checkpoint, then one while the disk of a rank is full; return what is reported."""
    checkpoint_files.FILE_BYTES = 4 * 400
    with CheckpointWriter(folder, 2, asynchronous=asynchronous, ranks=ranks) as writer:
        writer.save(snapshot(1, ranks.rank))
        writer.wait()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if ranks.rank == full:  # a limit on the size of files is that error of the same write
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            writer.save(snapshot(2, ranks.rank))
            writer.wait()
        except Findings as findings:
            return [f"{one.rule}: {one.message}" for one in findings.diagnostics]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return []


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_of_one_rank_is_reported_on_all_and_leaves_what_was_there(
    tmp_path: Path, asynchronous: bool, full: int
) -> None:
    reports = run_ranks(failing, 2, tmp_path, asynchronous, full)
    for each in reports:
        assert len(each) == 1
        assert each[0].startswith("checkpoint-not-saved: ")
        assert re.search(rf"rank {full}: [^;]+ \(\d+ MiB are free there\)$", each[0])
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert find_damage(tmp_path / "step-000001") is None


def test_a_folder_that_another_rank_does_not_share_is_reported(tmp_path: Path) -> None:
    reports = run_ranks(_apart, 2, tmp_path)
    for each in reports:
        assert "rank 1: " in each
        assert "run.dir must be a folder that all nodes share" in each
    assert checkpoints(tmp_path) == []


def _apart(ranks: Ranks, folder: Path) -> str:
    checkpoint_files.FILE_BYTES = 4 * 400
    own = folder if ranks.rank == 0 else folder / "of-another-node"
    try:
        save(own, snapshot(1, ranks.rank), 1, ranks=ranks)
    except Findings as findings:
        (one,) = findings.diagnostics
        return f"{one.message} {one.help}"
    return "nothing"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    run_ranks(write, 2, folder)
    return folder


@pytest.fixture
def two_files(written: Path, tmp_path: Path) -> Path:
    """Return a folder with two checkpoints of two ranks each."""
    return shutil.copytree(written, tmp_path / "two")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["model", "optimizer"])
@pytest.mark.parametrize("how", ["missing", "of the save before", "flipped"])
def test_damage_to_the_file_of_one_rank_is_seen(two_files: Path, kind: str, how: str) -> None:
    newer = two_files / "step-000003"
    file = max(newer.glob(f"{kind}-*.safetensors"))
    if how == "missing":
        file.unlink()
    elif how == "flipped":
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        shutil.copy(two_files / "step-000002" / file.name, file)
    found, findings = newest(two_files)
    assert found == two_files / "step-000002"
    assert [finding.rule for finding in findings] == ["corrupt-checkpoint"]
    assert file.name in findings[0].message


def test_a_manifest_without_one_of_the_files_is_damage(two_files: Path) -> None:
    path = two_files / "step-000003"
    manifest = json.loads((path / "manifest.json").read_text())
    gone = min(file.name for file in path.glob("model-*.safetensors"))
    del manifest[gone]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert find_damage(path) == f"manifest.json does not name {gone}"


def test_a_file_of_another_save_next_to_them_is_not_read(two_files: Path) -> None:
    path = two_files / "step-000003"
    of_before = min((two_files / "step-000002").glob("model-*.safetensors"))
    shutil.copy(of_before, path / "model-00009-of-00009.safetensors")
    assert find_damage(path) is None
    wanted = dict(tensors(3, "w"))
    assert all(torch.equal(one, wanted[name]) for name, one in open_checkpoint(path).model.items())


def test_files_of_one_process_and_of_several_have_transformers_names() -> None:
    assert tensor_files(["model.safetensors", "state.json"], "model") == ["model.safetensors"]
    several = [f"model-{number:05d}-of-00002.safetensors" for number in (2, 1)]
    assert tensor_files(several, "model") == several[::-1]
    with pytest.raises(LookupError, match=r"^optimizer\.safetensors$"):
        tensor_files(several, "optimizer")


def test_what_is_loaded_is_read_where_it_is_looked_into(tmp_path: Path) -> None:
    size = 64 * 2**20
    one, none = held([("w", torch.ones(size // 4))]), held([])
    made = Snapshot(1, one, none, torch.arange(3), {})
    found = open_checkpoint(save(tmp_path, made, 1))
    before = _mapped_bytes("model.safetensors")
    assert found.model["w"][: 2**20].sum() == 2**20
    assert _mapped_bytes("model.safetensors") - before < size // 4


def _mapped_bytes(name: str) -> int:
    """Return how much of a file is in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = os.path.basename(line.split(" ")[-1]) == name
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
