"""Rows and tensors shared out among many ranks: none twice, none left out.

That each tensor has one owner is held in `tests/training/test_checkpoint_files.py`, up to 1,024
ranks too.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.planning.test_micro_batch import run_of
from vtool.data.loader import micro_batches, packed_micro_batches
from vtool.data.packing import pack
from vtool.data.plan import Plan
from vtool.engines.fsdp2 import _place_of_share
from vtool.planning.micro_batch import shape_of
from vtool.planning.model import model_of
from vtool.planning.step import StepNeeds, measure_step
from vtool.training.checkpoint_files import (
    FILE_BYTES,
    Shares,
    WrittenFile,
    name_files,
    tensor_files,
)

WORLDS = [8, 64, 1024]
EACH_WORLD = [8, 64, pytest.param(1024, marks=pytest.mark.full)]


@pytest.mark.parametrize("world", EACH_WORLD)
def test_every_row_of_an_epoch_is_on_one_rank_once(world: int) -> None:
    rows = 2 * world + 3
    plan = Plan(rows, world, seed=7)
    kept = range(0, 2 * rows, 2)
    seen = [
        row
        for step in range(1, plan.steps_per_epoch + 1)
        for rank in range(world)
        for each in micro_batches(plan, kept, step, rank, world, 2)
        if each.counts
        for row in each.rows
    ]
    assert sorted(seen) == list(kept)


@pytest.mark.parametrize("world", EACH_WORLD)
def test_every_packed_row_of_a_step_is_on_one_rank_once(world: int) -> None:
    rows = max(100, world)
    lengths = [1 + number * 7919 % 500 for number in range(rows)]
    plan = Plan(rows, rows, seed=7)
    own = [
        [
            row
            for each in packed_micro_batches(plan, range(rows), lengths, 1, rank, world, 600)
            if each.counts
            for row in each.rows
        ]
        for rank in range(world)
    ]
    assert sorted(row for each in own for row in each) == list(range(rows))
    tokens = [sum(lengths[row] for row in each) for each in own]
    assert max(tokens) - min(tokens) <= max(lengths)


def test_packing_gives_each_row_to_the_first_rank_of_the_fewest_tokens() -> None:
    lengths = [5, 9, 9, 3, 1, 7, 7, 2]
    load = [0, 0, 0]
    expected: list[list[int]] = [[], [], []]
    for row in sorted(range(8), key=lambda row: (-lengths[row], row)):
        least = load.index(min(load))
        load[least] += lengths[row]
        expected[least].append(row)
    packed = [pack(range(8), lengths, rank, 3, 99) for rank in range(3)]
    assert [[row for group in each for row in group] for each in packed] == expected


@pytest.mark.parametrize("world", EACH_WORLD)
def test_a_manifest_of_many_ranks_names_each_tensor_once(tmp_path: Path, world: int) -> None:
    written = []
    for rank in range(world):
        for kind in ("model", "optimizer"):
            name = f"{kind}-of-rank-{rank:05d}-00000.safetensors"
            (tmp_path / name).write_bytes(b"1")
            tensors = (f"{kind}.{rank}.a", f"{kind}.{rank}.b")
            written.append(WrittenFile(kind, name, 1, "digest", tensors, 1))
    manifest = name_files(tmp_path, written)
    assert len(manifest) == 2 * world
    for kind in ("model", "optimizer"):
        assert len(tensor_files(manifest, kind)) == world
        index = json.loads((tmp_path / f"{kind}.safetensors.index.json").read_text())
        assert len(index["weight_map"]) == 2 * world
        assert set(index["weight_map"].values()) == set(tensor_files(manifest, kind))
    assert {path.name for path in tmp_path.glob("*.safetensors")} == set(manifest)


@contextmanager
def mesh_of(rank: int, world: int) -> Iterator[DeviceMesh]:
    """Yield the mesh of one of so many ranks; the others are not there."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("no_process_group")
@pytest.mark.parametrize("world", EACH_WORLD)
def test_every_row_of_a_weight_is_read_by_one_rank_once(world: int) -> None:
    shapes = [(1500, 3), (1024,), (7, 5), (1, 1)]
    places: dict[tuple[int, ...], list[tuple[slice, ...]]] = {shape: [] for shape in shapes}
    for rank in range(world):
        with mesh_of(rank, world) as mesh:
            for shape, found in places.items():
                stand_in: Any = SimpleNamespace(
                    shape=torch.Size(shape), device_mesh=mesh, placements=[Shard(0)]
                )
                found.append(_place_of_share(stand_in))
    for shape, found in places.items():
        rows = [each[0] for each in found if each[0].stop > each[0].start]
        assert (rows[0].start, rows[-1].stop) == (0, shape[0])
        assert all(one.stop == after.start for one, after in pairwise(rows))
        assert max(each.stop - each.start for each in rows) == -(-shape[0] // world)
        assert all(each[1:] == tuple(slice(0, size) for size in shape[1:]) for each in found)


@pytest.mark.parametrize("world", EACH_WORLD)
def test_a_rank_takes_its_part_of_ten_thousand_tensors_within_a_moment(world: int) -> None:
    """Each rank looks at every name and size, and copies, writes and digests its own alone."""
    began = time.process_time()
    shares = Shares(world)
    owners = Counter(shares(2**24) for _ in range(10_000))
    assert time.process_time() - began < 0.5
    assert set(owners) == set(range(world))
    del owners[0]  # the first file is its, however many ranks there are
    assert all(10_000 // world - 1 <= own <= 10_000 // world + 1 for own in owners.values())


def layers_of(count: int) -> Iterator[int]:
    """Yield the bytes of float32 weights and both means: an embedding, and layers like 7B's."""
    shapes = [(152_064, 3584)]
    shapes += [(3584, 3584), (512, 3584), (512, 3584), (3584,), (18_944, 3584)] * count
    for _ in range(3):
        yield from (4 * prod(shape) for shape in shapes)


@pytest.mark.parametrize("world", EACH_WORLD)
def test_a_save_brings_a_rank_its_share_and_no_more(world: int) -> None:
    """An owner is sent at most all of each of its own tensors, and nothing of the others."""
    sizes = list(layers_of(64))
    shares = Shares(world)
    received = Counter[int]()
    for size in sizes:
        received[shares(size)] += size
    assert received.total() == sum(sizes)
    # a tensor is not cut, and rank 0's first file may have been the last that it needed
    assert max(received.values()) <= sum(sizes) / world + max(*sizes, FILE_BYTES)


def planned(folder: Path, world: int) -> tuple[StepNeeds, list[torch.Size], float]:
    """Return the plan of a small model, the shapes of its weights, and the seconds of its CPU."""
    run = run_of(folder, "data.max_length=64", "data.global_batch_size=1024", "engine=fsdp2")
    module = model_of(run)
    shapes = [parameter.shape for parameter in module.parameters()]
    began = time.process_time()
    step = measure_step(run, module, world, shape_of(run, world))
    return step, shapes, time.process_time() - began


@pytest.mark.full
@pytest.mark.usefixtures("no_process_group")
def test_a_plan_of_many_ranks_has_their_shares_and_takes_no_longer(tmp_path: Path) -> None:
    planned(tmp_path, 8)  # the first one imports
    found = {world: planned(tmp_path, world) for world in WORLDS}
    for world, (step, shapes, _) in found.items():
        # rank 0's rows of each weight; vectors too are cut
        share = sum(4 * -(-shape[0] // world) * shape[1:].numel() for shape in shapes)
        buffers = step.memory["weights"] - share
        assert 0 <= buffers < 1024
        assert step.memory["optimizer"] == 2 * share
    few, many = found[WORLDS[0]], found[WORLDS[-1]]
    assert few[0].state == many[0].state  # a checkpoint's bytes are the model's
    assert many[2] < 3 * few[2]
