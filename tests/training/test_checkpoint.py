import errno
import json
import os
import resource
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.state import held
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.contract import to_all_ranks
from vtool.training import checkpoint, checkpoint_writer
from vtool.training.checkpoint import (
    Snapshot,
    checkpoints,
    find_damage,
    newest,
    open_checkpoint,
    save,
)
from vtool.training.checkpoint_writer import CheckpointWriter


def snapshot(step: int, size: int = 64) -> Snapshot:
    torch.manual_seed(step)
    return Snapshot(
        step,
        held({"w": torch.randn(size)}.items()),
        held({"w.exp_avg": torch.randn(size)}.items()),
        torch.arange(9),
        {"seconds": 1.25},
    )


def test_what_is_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    saved = snapshot(7)
    loaded = open_checkpoint(save(tmp_path, saved, keep_last=2))
    assert loaded.step == 7
    assert loaded.state == {"seconds": 1.25}
    assert torch.equal(saved.visits, loaded.visits)
    for name in ("model", "optimizer"):
        one, other = dict(getattr(saved, name)(to_all_ranks)), getattr(loaded, name)
        assert one.keys() == other.keys()
        assert all(
            torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one
        )


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 999999, 1000000):
        save(tmp_path, snapshot(step), keep_last=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-999999", "step-1000000"]


def test_one_that_cannot_be_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, snapshot(5), keep_last=1)

    remove = shutil.rmtree

    def denied(folder: Path, **options: Any) -> None:
        if folder.name.startswith(".removing-"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        remove(folder, **options)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", denied)
    assert save(tmp_path, snapshot(10), keep_last=1).name == "step-000010"
    said = capsys.readouterr().err
    assert "warning[checkpoint-not-removed VT826]" in said
    assert "step-000005 cannot be removed, and takes space: Operation not permitted" in said


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
        assert find_damage(path) is not None


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
    assert find_damage(older) is None


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(3), keep_last=2)
    shutil.copytree(path, tmp_path / ".writing-step-000004")
    assert checkpoints(tmp_path) == [path]


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(1), keep_last=1)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {file.name for file in path.iterdir()} - {"manifest.json"}


def test_what_is_written_while_the_loop_continues_is_what_was_there_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), checkpoint_writer.write_share

    def slow(*arguments: Any) -> Path:
        assert go_on.wait(30)
        return real(*arguments)

    monkeypatch.setattr(checkpoint_writer, "write_share", slow)
    made = snapshot(3)
    ((_, weight),), ((_, state),) = made.model(to_all_ranks), made.optimizer(to_all_ranks)
    visits = made.visits
    with CheckpointWriter(tmp_path, 2, asynchronous=True) as writer:
        writer.save(made)
        for tensor in (weight, state, visits):
            tensor.add_(1)
        assert checkpoints(tmp_path) == []
        go_on.set()
    loaded, wanted = open_checkpoint(tmp_path / "step-000003"), snapshot(3)
    assert torch.equal(loaded.model["w"], dict(wanted.model(to_all_ranks))["w"])
    wanted_mean = dict(wanted.optimizer(to_all_ranks))["w.exp_avg"]
    assert torch.equal(loaded.optimizer["w.exp_avg"], wanted_mean)
    assert torch.equal(loaded.visits, wanted.visits)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoints_are_written_in_turn_and_the_newest_are_kept(
    tmp_path: Path, asynchronous: bool
) -> None:
    with CheckpointWriter(tmp_path, 2, asynchronous=asynchronous) as writer:
        for step in range(1, 5):
            writer.save(snapshot(step, 1 << 16))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000003", "step-000004"]
    assert all(find_damage(path) is None for path in checkpoints(tmp_path))


def test_a_checkpoint_that_failed_in_the_background_is_reported_at_the_next_or_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file, not a folder")

    def loop(*steps: int, then: Exception | None = None) -> None:
        with CheckpointWriter(taken, 2, asynchronous=True) as writer:
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


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_file_that_the_manifest_does_not_name_may_have_changed(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, snapshot(3), keep_last=2)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest[name]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert find_damage(path) == f"manifest.json does not name {name}"
    (path / "manifest.json").write_text("{}")
    assert name in str(find_damage(path))


def test_a_manifest_names_only_files_next_to_it(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(3), keep_last=2)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "../secret": {}}))
    assert "not a file next to it" in str(find_damage(path))


def test_a_checkpoint_under_another_steps_name_is_not_that_steps(tmp_path: Path) -> None:
    save(tmp_path, snapshot(2), keep_last=2)
    save(tmp_path, snapshot(4), keep_last=2).rename(tmp_path / "step-000009")
    found, (finding,) = newest(tmp_path)
    assert found == tmp_path / "step-000002"
    assert "named step-000009, and its state is that of step 4" in finding.message
    copy = shutil.copytree(tmp_path / "step-000002", tmp_path / "step-000002-copy")
    assert "name of its folder" in str(find_damage(copy))


def test_all_files_have_the_mode_that_the_umask_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = save(tmp_path, snapshot(1), keep_last=1)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o640}


def test_a_checkpoint_that_is_there_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk refuses to flush the folder, after the rename."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    path = save(tmp_path, snapshot(1), keep_last=1)
    assert find_damage(path) is None
    assert "warning[checkpoint-not-synced VT" in capsys.readouterr().err


def test_the_metrics_are_on_the_disk_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os,
        "fsync",
        lambda one: (done.append(Path(os.readlink(f"/proc/self/fd/{one}")).name), sync(one))[1],
    )
    monkeypatch.setattr(os, "rename", lambda *two: (done.append(two[1].name), rename(*two))[1])
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with CheckpointWriter(
        tmp_path / "c", 1, asynchronous=True, synced=tmp_path / "metrics.jsonl"
    ) as writer:
        writer.save(snapshot(1))
    assert done.index("metrics.jsonl") < done.index("step-000001")


def test_one_full_disk_is_reported_once_under_asynchronous_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(28, "No space left on device")

    def save_file(*_: Any) -> None:
        raise full

    monkeypatch.setattr(checkpoint, "save_file", save_file)

    def loop() -> None:
        with CheckpointWriter(tmp_path, 2, asynchronous=True) as writer:
            writer.save(snapshot(1))
            raise Findings(Diagnostic("run-folder-unwritable", "metrics.jsonl: no space")) from full

    with pytest.raises(Findings) as caught:
        loop()
    assert [one.rule for one in caught.value.diagnostics] == ["checkpoint-not-saved"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "state.json"])
def test_a_pipe_in_place_of_a_file_is_damage_and_waited_for_by_nobody(
    tmp_path: Path, name: str
) -> None:
    saved = save(tmp_path, snapshot(1), keep_last=2)
    written = json.loads((saved / "manifest.json").read_text())
    written.get(name, {})["bytes"] = 0
    (saved / "manifest.json").write_text(json.dumps(written))
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert find_damage(saved) == f"{name} cannot be read: no file"


def test_digits_of_other_scripts_name_no_step(tmp_path: Path) -> None:
    save(tmp_path, snapshot(4), keep_last=2).rename(tmp_path / "step-\u0660\u0664")
    assert checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("manifest.json", "manifest.json cannot be read: it has 42,949,672,960 bytes"),
        ("state.json", "state.json has 42949672960 bytes"),
    ],
)
def test_a_file_of_json_that_goes_on_for_gigabytes_is_damage(
    tmp_path: Path, name: str, words: str
) -> None:
    path = save(tmp_path, snapshot(3), keep_last=2)
    os.truncate(path / name, 40 * 2**30)  # without a block of the disk
    assert words in str(find_damage(path))
