import json
import resource
import shutil
from pathlib import Path

import pytest
import torch

from vtool.diagnostics import Findings
from vtool.training.checkpoint import Snapshot, checkpoints, damage, load, newest, save


def snapshot(step: int, size: int = 64) -> Snapshot:
    torch.manual_seed(step)
    return Snapshot(step, {"w": torch.randn(size)}, {"w.exp_avg": torch.randn(size)}, {"visits": torch.arange(9)}, {"seconds": 1.25})


def test_what_is_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    saved = snapshot(7)
    loaded = load(save(tmp_path, saved, keep_last=2))
    assert loaded.step == 7
    assert loaded.state == {"seconds": 1.25}
    for name in ("model", "optimizer", "progress"):
        one, other = getattr(saved, name), getattr(loaded, name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 999999, 1000000):
        save(tmp_path, snapshot(step), keep_last=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-999999", "step-1000000"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_any_damage_is_seen_and_the_one_before_is_taken(tmp_path: Path, name: str, how: str) -> None:
    older, newer = (save(tmp_path, snapshot(step), keep_last=2) for step in (1, 2))
    file = newer / name
    content = file.read_bytes()
    match how:
        case "truncated":
            file.write_bytes(content[:-1])
        case "flipped":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "missing":
            file.unlink()
    found, findings = newest(tmp_path)
    assert found == older
    assert [finding.rule for finding in findings] == ["corrupt-checkpoint"]
    assert name in findings[0].message


def test_a_broken_manifest_is_damage(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(1), keep_last=1)
    for text in ("", "[]", '{"model.safetensors": 3}'):
        (path / "manifest.json").write_text(text)
        assert damage(path) is not None


def test_a_checkpoint_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of a file stands in for a full disk: the same error comes out of the same write."""
    older = save(tmp_path, snapshot(1), keep_last=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(Findings) as caught:
            save(tmp_path, snapshot(2, size=100_000), keep_last=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.diagnostics[0].rule == "checkpoint-not-saved"
    assert [path.name for path in tmp_path.iterdir()] == [older.name]
    assert damage(older) is None


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(3), keep_last=2)
    shutil.copytree(path, tmp_path / ".writing-step-000004")
    assert checkpoints(tmp_path) == [path]


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(1), keep_last=1)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {file.name for file in path.iterdir()} - {"manifest.json"}
