"""Batches on their way to a device: bytes, pinned memory, positions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.each_family import EACH_FAMILY
from tests.rows import visual_rows, write_rows
from tests.runs import encoded, messages, request, session
from vtool.data.collate import Batch, collate
from vtool.data.loader import EncodedRows, MicroBatch, load_steps
from vtool.data.packing import collate_packed
from vtool.data.visuals import PIXELS
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

CPU = torch.device("cpu")
PACKED = ("data.packing=token_budget", "data.micro_batch_tokens=640")


def rows_of(folder: Path, family: str, *settings: str) -> tuple[EncodedRows, EncodedRows, Any]:
    """Rows with images, videos and neither, with patches of floats and of bytes."""
    write_rows(folder / "rows.jsonl", visual_rows(folder))
    given = [f"model={{family: {family}, size: tiny}}", "optim.lr=1e-3", "train.steps=2"]
    given += ["data.global_batch_size=6", messages(folder / "rows.jsonl"), *settings]
    floats, processor = encoded(request("rows", *given, f"run.dir={folder / 'run'}"))
    return floats, replace(floats, as_bytes=True, cache={}), processor


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_a_batch_of_bytes_is_that_of_floats_once_it_is_moved(tmp_path: Path, family: str) -> None:
    """An image's patch has the bytes of one frame: where videos are images, those of all."""
    floats, as_bytes, processor = rows_of(tmp_path, family)
    depth = processor.video.frames_per_patch
    one_input = processor.video.family.facts.videos_are_images
    for make in (collate, collate_packed):
        for rows in ([0, 1], [0, 5], [3, 1], [2, 5], [5]):
            wanted = make([floats.sample(row) for row in rows], processor).to(CPU)
            before = make([as_bytes.sample(row) for row in rows], processor)
            moved = before.to(CPU)
            assert before.inputs.keys() == wanted.inputs.keys()
            assert before.images == wanted.images
            assert all(torch.equal(moved.inputs[name], one) for name, one in wanted.inputs.items())
            assert all(moved.inputs[name].dtype == one.dtype for name, one in wanted.inputs.items())
            assert not moved.values
            patches = {name for name in PIXELS if name in before.inputs}
            assert patches == before.values.keys()
            for name in patches:
                assert before.inputs[name].dtype == torch.uint8
                video = one_input and rows in ([3, 1], [2, 5])
                narrow = 4 if video or name == "pixel_values_videos" else 4 * depth
                assert before.inputs[name].nbytes * narrow == wanted.inputs[name].nbytes


def test_images_and_videos_of_other_values_are_floats_where_they_are_one_input(
    tmp_path: Path,
) -> None:
    floats, as_bytes, processor = rows_of(tmp_path, "glm4v")
    processor.video.frames.image_mean = [0.1, 0.2, 0.3]
    for row, dtype in ((3, torch.float32), (2, torch.float32), (1, torch.uint8)):
        wanted, given = floats.sample(row), as_bytes.sample(row)
        assert given.visuals.inputs["pixel_values"].dtype == dtype
        batches = [collate([one], processor).to(CPU) for one in (wanted, given)]
        assert torch.equal(*(one.inputs["pixel_values"] for one in batches))


def test_rows_of_floats_and_of_bytes_go_into_one_batch(tmp_path: Path) -> None:
    """An audit may have kept some as floats before the device is known."""
    floats, as_bytes, processor = rows_of(tmp_path, "qwen2_5_vl")
    for first, second, name in ((0, 1, "pixel_values"), (2, 3, "pixel_values_videos")):
        mixed = collate([floats.sample(first), as_bytes.sample(second)], processor).to(CPU)
        wanted = collate([floats.sample(first), floats.sample(second)], processor)
        assert torch.equal(mixed.inputs[name], wanted.inputs[name])


def test_inputs_that_are_dropped_need_no_values(tmp_path: Path) -> None:
    _, as_bytes, processor = rows_of(tmp_path, "qwen2_5_vl")
    drop = ("pixel_values", "image_grid_thw")
    for make in (collate, collate_packed):
        assert not make([as_bytes.sample(0)], processor, drop).values


@pytest.mark.full
@pytest.mark.parametrize("settings", [("data.micro_batch_size=3",), PACKED])
def test_a_run_with_bytes_trains_the_same_to_the_bit(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    write_rows(tmp_path / "rows.jsonl", visual_rows(tmp_path))
    found = []
    for as_bytes in (False, True):
        given = ["model={family: qwen2_5_vl, size: tiny}", "optim.lr=1e-3", "train.steps=2"]
        given += ["data.global_batch_size=6", messages(tmp_path / "rows.jsonl"), *settings]
        opened, progress = session(request("rows", *given, f"run.dir={tmp_path / 'run'}"))
        opened.rows["train"].cache.clear()
        opened.rows["train"].as_bytes = as_bytes
        steps = load_steps(opened.rows["train"], range(1, 3), opened.micro_batches, 0)
        found.append(
            [
                train_step(opened, progress, step, batches, StopRequest())[0]["loss"]
                for step, batches in enumerate(steps, 1)
            ]
        )
    assert found[0] == found[1]


def test_on_a_gpu_batches_come_as_bytes_in_pinned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's part is recorded in its place: every tensor is pinned, and none twice."""
    floats, _, _ = rows_of(tmp_path, "qwen2_5_vl")
    pinned: list[Tensor] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    plan = lambda step: [MicroBatch((0, 1))]  # noqa: E731
    ((batch,),) = load_steps(floats, range(1, 2), plan, 0, device=torch.device("cuda", 0))
    assert floats.as_bytes
    tables = [values.table for values in batch.values.values()]
    assert tables
    given = [*batch.inputs.values(), batch.columns, batch.targets, *tables]
    assert {id(one) for one in given} == {id(one) for one in pinned}
    assert len(pinned) == len(given)
    pinned.clear()
    floats.as_bytes = False
    ((batch,),) = load_steps(floats, range(1, 2), plan, 0)
    assert not pinned
    assert not floats.as_bytes


def test_positions_are_there_before_a_batch_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.jsonl", visual_rows(tmp_path))
    given = ["model={family: qwen2_5_vl, size: tiny}", "optim.lr=1e-3", "train.steps=1"]
    given += ["data.global_batch_size=6", messages(tmp_path / "rows.jsonl"), *PACKED]
    opened, progress = session(request("rows", *given, f"run.dir={tmp_path / 'run'}"))
    move, moved = Batch.to, []

    def looked_at(self: Batch, device: torch.device) -> Batch:
        moved.append("position_ids" in self.inputs)
        return move(self, device)

    monkeypatch.setattr(Batch, "to", looked_at)
    (batches,) = load_steps(opened.rows["train"], range(1, 2), opened.micro_batches, 0)
    train_step(opened, progress, 1, batches, StopRequest())
    assert moved
    assert all(moved)
