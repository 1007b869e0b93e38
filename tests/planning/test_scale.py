"""What many ranks share out, computed for all of them: no row and no tensor twice, none left out.

That each tensor has one owner is held in `tests/training/test_checkpoint_files.py`, up to 1,024
ranks too.
"""

import json
from pathlib import Path

import pytest

from vtool.data.loader import micro_batches, packed_micro_batches
from vtool.data.packing import pack
from vtool.data.plan import Plan
from vtool.training.checkpoint_files import WrittenFile, name_files, tensor_files

WORLDS = [8, 64, 1024]


@pytest.mark.parametrize("world", WORLDS)
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


@pytest.mark.parametrize("world", WORLDS)
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


@pytest.mark.parametrize("world", WORLDS)
def test_a_manifest_of_many_ranks_names_each_tensor_once(tmp_path: Path, world: int) -> None:
    written = []
    for rank in range(world):
        for kind in ("model", "optimizer"):
            name = f"{kind}-of-rank-{rank:05d}-00000.safetensors"
            (tmp_path / name).write_bytes(b"1")
            tensors = (f"{kind}.{rank}.a", f"{kind}.{rank}.b")
            written.append(WrittenFile(kind, name, 1, "digest", tensors))
    manifest = name_files(tmp_path, written)
    assert len(manifest) == 2 * world
    for kind in ("model", "optimizer"):
        assert len(tensor_files(manifest, kind)) == world
        index = json.loads((tmp_path / f"{kind}.safetensors.index.json").read_text())
        assert len(index["weight_map"]) == 2 * world
        assert set(index["weight_map"].values()) == set(tensor_files(manifest, kind))
    assert {path.name for path in tmp_path.glob("*.safetensors")} == set(manifest)
