"""Texts of a batch and their digests, against a walk over each row."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vtool.watch.inject.vtool_watch.rows import documents, keep_batch, ledger

IMAGE = 9
CONFIG = SimpleNamespace(image_token_id=IMAGE, vision_config=SimpleNamespace(spatial_merge_size=2))


def places(inputs: dict[str, Any], ids: Tensor) -> list[tuple[int, list[int]]]:
    return [(text.row, text.columns.tolist()) for text in documents(inputs, ids)]


@pytest.mark.parametrize("gaps", [False, True])
def test_a_row_is_the_places_that_its_mask_has(gaps: bool) -> None:
    chance = random.Random(0)
    for _ in range(40):
        rows, length = chance.randint(1, 6), chance.randint(1, 9)
        mask = []
        for _row in range(rows):
            begin = chance.randint(0, length)
            end = chance.randint(begin, length)
            row = [int(begin <= place < end) for place in range(length)]
            mask.append([bit and int(chance.random() > 0.2) for bit in row] if gaps else row)
        ids = torch.randint(10, 50, (rows, length))
        expected = [
            (row, kept)
            for row, bits in enumerate(mask)
            if len(kept := [place for place, bit in enumerate(bits) if bit]) > 1
        ]
        assert places({"attention_mask": torch.tensor(mask)}, ids) == expected
        assert places({"attention_mask": torch.tensor(mask).bool()}, ids) == expected


def test_a_packed_row_is_cut_where_positions_begin_anew() -> None:
    ids = torch.randint(10, 50, (2, 7))
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])
    cut = [(0, [0, 1, 2]), (0, [3, 4, 5, 6]), (1, list(range(7)))]
    assert places({"position_ids": positions}, ids) == cut
    numbered = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1] * 7])
    assert places({"attention_mask": numbered}, ids) == cut


def digests(inputs: dict[str, Any]) -> list[str]:
    found: list[str] = ledger(keep_batch(inputs, inputs["input_ids"], 0), CONFIG)["rows"]
    return found


def test_a_text_has_the_same_digest_on_either_side_of_padding_and_packed() -> None:
    one, other = [11, 12, 13, 14], [21, 22]
    right = torch.tensor([one, [*other, 0, 0]])
    left = torch.tensor([[0, 0, *other], one])
    packed = {
        "input_ids": torch.tensor([one + other]),
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1]]),
    }
    expected = digests({"input_ids": right, "attention_mask": (right > 0).long()})
    assert len(set(expected)) == 2
    assert digests({"input_ids": left, "attention_mask": (left > 0).long()}) == expected[::-1]
    assert digests(packed) == expected


def with_images(order: list[int], seed: int = 0) -> dict[str, Any]:
    """Return three rows of the same text, with 1, 2 and 1 images of two sizes."""
    grids = [[[1, 2, 2]], [[1, 4, 2], [1, 2, 2]], [[1, 2, 2]]]
    patches = [4, 12, 4]
    pixels = torch.randn(20, 6, generator=torch.Generator().manual_seed(seed)).split(patches)
    rows = [[11, IMAGE, 12, 13, 14], [11, IMAGE, IMAGE, 12, IMAGE], [11, IMAGE, 12, 13, 14]]
    return {
        "input_ids": torch.tensor([rows[row] for row in order]),
        "image_grid_thw": torch.tensor([grid for row in order for grid in grids[row]]),
        "pixel_values": torch.cat([pixels[row] for row in order]),
    }


def test_pixels_distinguish_rows_of_one_text_and_go_with_their_row() -> None:
    before = digests(with_images([0, 1, 2]))
    assert len(set(before)) == 3
    assert digests(with_images([2, 0, 1])) == [before[2], before[0], before[1]]
    changed = with_images([0, 1, 2])
    changed["pixel_values"][-1, -1] += 1
    assert digests(changed)[:2] == before[:2]
    assert digests(changed)[2] != before[2]


def test_images_that_fit_no_row_are_in_the_digests_of_all() -> None:
    inputs = with_images([0, 1, 2])
    inputs["pixel_values"] = torch.randn(21, 6)
    inputs["image_grid_thw"] = torch.tensor([[1, 2, 2]] * 2)
    fact = ledger(keep_batch(inputs, inputs["input_ids"], 0), CONFIG)
    assert fact["pixels"] == "batch"
    before = fact["rows"]
    inputs["pixel_values"][0, 0] += 1
    after = digests(inputs)
    assert all(one != other for one, other in zip(after, before, strict=True))


def test_the_batch_may_be_changed_behind_the_pass() -> None:
    inputs = with_images([0, 1, 2])
    expected = digests(inputs)
    kept = keep_batch(inputs, inputs["input_ids"], 0)
    inputs["input_ids"].zero_()
    inputs["pixel_values"].zero_()
    assert ledger(kept, CONFIG)["rows"] == expected
