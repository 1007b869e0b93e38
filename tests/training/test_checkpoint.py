import json
import resource
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from vtool.diagnostics import Findings
from vtool.training import checkpoint
from vtool.training.checkpoint import Snapshot, Writer, checkpoints, damage, load, newest, save


def snapshot(step: int, size: int = 64) -> Snapshot:
    torch.manual_seed(step)
    return Snapshot(
        step,
        {"w": torch.randn(size)},
        {"w.exp_avg": torch.randn(size)},
        {"visits": torch.arange(9)},
        {"seconds": 1.25},
    )


def test_what_is_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    saved = snapshot(7)
    loaded = load(save(tmp_path, saved, keep_last=2))
    assert loaded.step == 7
    assert loaded.state == {"seconds": 1.25}
    for name in ("model", "optimizer", "progress"):
        one, other = getattr(saved, name), getattr(loaded, name)
        assert one.keys() == other.keys()
        assert all(
            torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one
        )


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 999999, 1000000):
        save(tmp_path, snapshot(step), keep_last=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-999999", "step-1000000"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "progress.safetensors", "state.json"]
)
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_any_damage_is_seen_and_the_one_before_is_taken(
    tmp_path: Path, name: str, how: str
) -> None:
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
    """A limit on the size of a file stands in for a full disk:

    the same error comes out of the same write.
    """
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


def test_what_is_written_while_the_loop_goes_on_is_what_was_there_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), checkpoint.save

    def slow(*arguments: Any) -> Path:
        assert go_on.wait(30)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)
    made = snapshot(3)
    weight, state, visits = made.model["w"], made.optimizer["w.exp_avg"], made.progress["visits"]
    with Writer(tmp_path, 2, asynchronous=True) as writer:
        writer.save(made)
        for tensor in (weight, state, visits):
            tensor.add_(1)
        assert checkpoints(tmp_path) == []
        go_on.set()
    loaded, wanted = load(tmp_path / "step-000003"), snapshot(3)
    assert torch.equal(loaded.model["w"], wanted.model["w"])
    assert torch.equal(loaded.optimizer["w.exp_avg"], wanted.optimizer["w.exp_avg"])
    assert torch.equal(loaded.progress["visits"], wanted.progress["visits"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoints_are_written_in_turn_and_the_newest_are_kept(
    tmp_path: Path, asynchronous: bool
) -> None:
    with Writer(tmp_path, 2, asynchronous=asynchronous) as writer:
        for step in range(1, 5):
            writer.save(snapshot(step, 1 << 16))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000003", "step-000004"]
    assert all(damage(path) is None for path in checkpoints(tmp_path))


def test_a_checkpoint_that_failed_beside_the_loop_is_told_at_the_next_or_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file, not a folder")

    def loop(*steps: int, then: Exception | None = None) -> None:
        with Writer(taken, 2, asynchronous=True) as writer:
            for step in steps:
                writer.save(snapshot(step))
            if then:
                raise then

    with pytest.raises(Findings, match="step-000001 could not be written"):
        loop(1, 2)
    with pytest.raises(Findings, match="step-000003 could not be written"):
        loop(3)
    with pytest.raises(ArithmeticError):
        loop(4, then=ArithmeticError())
    assert "error[checkpoint-not-saved VT" in (said := capsys.readouterr().err)
    assert "step-000004" in said
