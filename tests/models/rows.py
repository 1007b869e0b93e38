"""Rows of text and images for tiny models of each family, alone and packed into one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tests.models.tiny import IDS, VOCABULARY
from vtool.data.collate import Batch, Documents, with_tower_index
from vtool.data.packing import with_positions
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models.tower_index import tower_indexer

Grids = Sequence[tuple[int, int]]
"""The patches of a row's images, in height and width."""
NOTHING = torch.zeros(0, dtype=torch.long)


@dataclass(frozen=True)
class Row:
    inputs: dict[str, Tensor]
    images: int

    @property
    def length(self) -> int:
        return self.inputs["input_ids"].shape[1]


def row(model: Any, text: int, grids: Grids, seed: int) -> Row:
    """A row of so many tokens of text behind its images, in float64."""
    generator = torch.Generator().manual_seed(seed)
    vision = model.config.vision_config
    merged = vision.spatial_merge_size**2
    images = [
        [IDS.vision_start, *[IDS.image] * (h * w // merged), IDS.vision_end] for h, w in grids
    ]
    words = torch.randint(7, VOCABULARY, (text,), generator=generator).tolist()
    ids = torch.tensor([[*(token for image in images for token in image), *words]])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == IDS.image).long()}
    if grids:
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        patches = sum(h * w for h, w in grids)
        inputs |= {
            "pixel_values": torch.randn(patches, width, generator=generator, dtype=torch.float64),
            "image_grid_thw": torch.tensor([[1, h, w] for h, w in grids]),
        }
    return Row(inputs, len(grids))


def packed(model: Any, rows: Sequence[Row], *, index: bool = True) -> Batch:
    """All rows in one, as a run's loader makes it; with the tower's index, or without."""
    joined = {
        name: torch.cat([one.inputs[name] for one in rows if name in one.inputs], dim)
        for name, dim in (
            ("input_ids", 1),
            ("mm_token_type_ids", 1),
            ("pixel_values", 0),
            ("image_grid_thw", 0),
        )
        if any(name in one.inputs for one in rows)
    }
    documents = Documents(
        tuple(one.length for one in rows), tuple(one.images for one in rows), (0,) * len(rows)
    )
    batch = Batch(joined, NOTHING, NOTHING, (), 0, 0, 0, 0, documents)
    family = load_family(model.config.model_type)
    indexer = tower_indexer(family, model) if index else None
    return with_tower_index(with_positions(batch, model), indexer)


PACKED = [name for name, facts in FAMILIES.items() if not facts.recurrent]
"""The families whose rows can be packed."""


def padded(model: Any, rows: Sequence[Row]) -> Batch:
    """Rows that are padded on the right, as a run's loader makes them."""
    ids = [one.inputs["input_ids"][0] for one in rows]
    input_ids = pad_sequence(ids, batch_first=True, padding_value=IDS.pad)
    kept = pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    inputs = {
        "input_ids": input_ids,
        "attention_mask": kept,
        "mm_token_type_ids": (input_ids == IDS.image).long(),
    } | {
        name: torch.cat([one.inputs[name] for one in rows if name in one.inputs])
        for name in ("pixel_values", "image_grid_thw")
    }
    batch = Batch(inputs, NOTHING, NOTHING, (), 0, 0, 0, 0)
    family = load_family(model.config.model_type)
    return with_tower_index(batch, tower_indexer(family, model))
