"""Positions of rows with images: ours against those that transformers' own classes make."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from vtool.watch.inject.vtool_watch.mrope import MODEL_TYPES, wrong_places

IMAGE, VIDEO, TEXT = 90, 91, 7
GRIDS = [[1, 4, 6], [1, 8, 2]]
"""Patches; two by two of them are a place."""
IDS = [TEXT] * 3 + [IMAGE] * 6 + [TEXT] * 2 + [IMAGE] * 4 + [TEXT] * 5


def config(kind: str) -> Any:
    made = transformers.AutoConfig.for_model(kind)
    made.image_token_id, made.video_token_id = IMAGE, VIDEO
    return made


def of_transformers(kind: str) -> Tensor:
    """Return the positions by get_rope_index of transformers' class, [3, tokens]."""
    made = config(kind)
    model: Any = transformers.MODEL_MAPPING[type(made)]
    own: Any = SimpleNamespace(config=made)
    own.get_vision_position_ids = model.get_vision_position_ids.__get__(own)
    ids = torch.tensor([IDS])
    given = {"mm_token_type_ids": (ids == IMAGE).int(), "image_grid_thw": torch.tensor(GRIDS)}
    places, _ = model.get_rope_index(own, ids, **given)
    found: Tensor = places[-3:, 0]
    return found


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_the_positions_of_transformers_are_mropes(kind: str) -> None:
    given = of_transformers(kind)
    grids = torch.tensor(GRIDS)
    assert wrong_places(config(kind), IDS, grids, given) == {"wrong": 0, "as_text": False}
    moved = given + 5  # padding on the left
    assert wrong_places(config(kind), IDS, grids, moved) == {"wrong": 0, "as_text": False}


def test_what_is_wrong_is_counted() -> None:
    made, grids = config("qwen2_5_vl"), torch.tensor(GRIDS)
    plain = torch.arange(len(IDS))
    flat = wrong_places(made, IDS, grids, plain)
    assert flat is not None
    assert flat["as_text"]
    assert flat == wrong_places(made, IDS, grids, plain.expand(4, -1))
    # what stands before the first image is right, and so is its first place
    assert flat["wrong"] == len(IDS) - 4
    right = of_transformers("qwen2_5_vl")
    right[0, -1] += 1
    assert wrong_places(made, IDS, grids, right) == {"wrong": 1, "as_text": False}


@pytest.mark.parametrize(
    ("kind", "ids", "grids"),
    [
        ("qwen2", IDS, GRIDS),
        ("qwen2_5_vl", [TEXT] * len(IDS), GRIDS),
        ("qwen2_5_vl", [VIDEO, *IDS[1:]], GRIDS),
        ("qwen2_5_vl", IDS, GRIDS[:1]),
        ("qwen2_5_vl", IDS, [*GRIDS, [1, 2, 2]]),
        ("qwen2_5_vl", IDS, [[2, 4, 6], [1, 8, 2]]),
    ],
)
def test_what_cannot_be_held_against_them_is_not(kind: str, ids: list[int], grids: Any) -> None:
    positions = torch.arange(len(ids)).expand(3, -1)
    assert wrong_places(config(kind), ids, torch.tensor(grids), positions) is None
    assert wrong_places(config("qwen2_5_vl"), IDS, None, positions) is None
