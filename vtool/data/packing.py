"""Packing: documents that share a row without padding, spread over ranks and micro-batches by their tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from vtool.data.chat import IGNORED
from vtool.data.collate import Batch, Documents, image_inputs
from vtool.data.encode import Sample
from vtool.models.processor import Processor


def pack(rows: Sequence[int], lengths: Sequence[int], rank: int, world: int, budget: int) -> list[tuple[int, ...]]:
    """One rank's micro-batches of a step: a function of the step's rows and their lengths, the same asked for on any rank.

    Each row goes, the longest first, to the rank with the fewest tokens; there into the first micro-batch that has room, or a new one. So
    ranks differ by less than the longest row, and micro-batches of a rank are at least half full, but for one.

    Args:
        rows: numbers of rows.
        lengths: tokens of each.
        budget: tokens of a micro-batch; no row has more.
    """
    load = [0] * world
    mine: list[tuple[list[int], int]] = []
    for row, length in sorted(zip(rows, lengths, strict=True), key=lambda pair: (-pair[1], pair[0])):
        least = load.index(min(load))
        load[least] += length
        if least != rank:
            continue
        place = next((number for number, (_, tokens) in enumerate(mine) if tokens + length <= budget), None)
        if place is None:
            mine.append(([row], length))
        else:
            mine[place] = ([*mine[place][0], row], mine[place][1] + length)
    return [tuple(rows) for rows, _ in mine]


def collate_packed(samples: Sequence[Sample], processor: Processor, drop: Sequence[str] = ()) -> Batch:
    """One row [1, L] of all samples, one after the other. Its positions are the model's to give: `with_positions`."""
    input_ids = torch.cat([sample.input_ids for sample in samples])[None]
    inputs = {"input_ids": input_ids, "mm_token_type_ids": (input_ids == processor.ids.image).long(), **image_inputs(samples)}
    # The first token of a document is predicted from nothing: left in, it would be from the end of the one before.
    labels = torch.cat([torch.cat([sample.labels.new_full((1,), IGNORED), sample.labels[1:]]) for sample in samples])
    targets = labels[1:]
    columns = (targets != IGNORED).nonzero().flatten()
    return Batch(
        inputs={name: tensor for name, tensor in inputs.items() if name not in drop},
        columns=columns,
        targets=targets[columns][None],
        indices=tuple(sample.index for sample in samples),
        supervised=len(columns),
        tokens=input_ids.shape[1],
        documents=Documents(tuple(len(sample.input_ids) for sample in samples), tuple(sample.images for sample in samples)),
    )


def with_positions(batch: Batch, model: Any) -> Batch:
    """A packed row with `position_ids` [3, 1, L]: each document has those that the model gives it in a row of its own.

    Args:
        model: transformers' own, bare.
    """
    if batch.documents is None:
        return batch
    ids, types, grids = (batch.inputs.get(name) for name in ("input_ids", "mm_token_type_ids", "image_grid_thw"))
    assert ids is not None
    positions, start, image = [], 0, 0
    for length, images in zip(batch.documents.lengths, batch.documents.images, strict=True):
        own, seen = slice(start, start + length), slice(image, image + images)
        start, image = own.stop, seen.stop
        if images and types is not None and grids is not None:
            found, _ = model.model.get_rope_index(ids[:, own], mm_token_type_ids=types[:, own], image_grid_thw=grids[seen])
            positions.append(found)
        else:
            positions.append(torch.arange(length, device=ids.device).expand(3, 1, length))
    return replace(batch, inputs={**batch.inputs, "position_ids": torch.cat(positions, -1)})
