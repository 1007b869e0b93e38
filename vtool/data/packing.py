"""Packing: documents that share rows without padding, spread over ranks by their tokens."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapreplace
from typing import Any

import torch
from torch import Tensor

from vtool.data.chat import IGNORED
from vtool.data.collate import (
    Batch,
    Documents,
    count_visual,
    shown,
    token_types,
    values_of_bytes,
    visual_inputs,
)
from vtool.data.encode import Sample
from vtool.models.processor import Processor


def pack(
    rows: Sequence[int], lengths: Sequence[int], rank: int, world: int, budget: int
) -> list[tuple[int, ...]]:
    """Return one rank's micro-batches of a step, a function of the step's rows and lengths alone.

    Each row goes, the longest first, to the rank with the fewest tokens; there into the first
    micro-batch that has room, or a new one. So ranks differ by less than the longest row, and
    micro-batches of a rank are at least half full, but for one.

    Args:
        rows: numbers of rows.
        lengths: tokens of each.
        budget: tokens of a micro-batch; no row has more.
    """
    least_loaded = [(0, one) for one in range(world)]  # a heap
    bins: list[tuple[list[int], int]] = []
    for row, length in sorted(
        zip(rows, lengths, strict=True), key=lambda pair: (-pair[1], pair[0])
    ):
        tokens, least = least_loaded[0]
        heapreplace(least_loaded, (tokens + length, least))
        if least != rank:
            continue
        place = next(
            (number for number, (_, tokens) in enumerate(bins) if tokens + length <= budget), None
        )
        if place is None:
            bins.append(([row], length))
        else:
            bins[place] = ([*bins[place][0], row], bins[place][1] + length)
    return [tuple(rows) for rows, _ in bins]


def collate_packed(
    samples: Sequence[Sample], processor: Processor, drop: Sequence[str] = ()
) -> Batch:
    """Build one row [1, L] of all samples, one after the other.

    Its positions are the model's to give: `with_positions`.
    """
    input_ids = torch.cat([sample.input_ids for sample in samples])[None]
    inputs = {"input_ids": input_ids}
    if processor.whole is None:
        inputs["mm_token_type_ids"] = token_types(input_ids, processor)
    for name in processor.whole.token_inputs if processor.whole else ():
        rows = [one.visuals.tokens.get(name, torch.zeros_like(one.input_ids)) for one in samples]
        inputs[name] = torch.cat(rows)[None]
    inputs |= visual_inputs(samples, processor)
    inputs = {name: tensor for name, tensor in inputs.items() if name not in drop}
    # The first token of a document is predicted from nothing: left in, it would be from the end of
    # the one before.
    labels = torch.cat(
        [
            torch.cat([sample.labels.new_full((1,), IGNORED), sample.labels[1:]])
            for sample in samples
        ]
    )
    targets = labels[1:]
    columns = (targets != IGNORED).nonzero().flatten()
    return Batch(
        inputs=inputs,
        columns=columns,
        targets=targets[columns][None],
        indices=tuple(sample.index for sample in samples),
        supervised=len(columns),
        tokens=input_ids.shape[1],
        visual=count_visual(input_ids, processor),
        padding=0,
        documents=Documents(
            lengths=tuple(len(sample.input_ids) for sample in samples),
            images=tuple(sample.visuals.images for sample in samples),
            videos=tuple(sample.visuals.videos for sample in samples),
        ),
        values=values_of_bytes(inputs, processor),
        **({} if processor.whole is None else _of_whole(samples, inputs)),
    )


def _of_whole(samples: Sequence[Sample], inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a batch of another family: its images, each document's small inputs."""
    small = tuple(
        {
            **one.visuals.tokens,
            **{
                name: tensor
                for name, tensor in one.visuals.inputs.items()
                if not name.startswith("pixel_values")
            },
        }
        for one in samples
    )
    return {"shown": shown(samples, inputs), "small": small}


def with_positions(batch: Batch, model: Any) -> Batch:
    """Add `position_ids` [3, B, L], where the batch is: those of each document of a packed row.

    Of padded rows with images they are what transformers would compute in its forward pass, where
    the sizes of images would be read off the device eight times a row.

    Args:
        batch: of padded rows, one with an index of its tower: a class of the user's own has none,
            and may have positions of its own.
        model: transformers' own, bare.
    """
    if batch.documents is None:
        return _with_positions_of_rows(batch, model) if batch.towers else batch
    if batch.shown is not None:
        return replace(batch, inputs={**batch.inputs, "position_ids": _learnt(batch, model)})
    ids, types = batch.inputs.get("input_ids"), batch.inputs.get("mm_token_type_ids")
    assert ids is not None
    positions, start, image, video = [], 0, 0, 0
    for length, images, videos in zip(
        batch.documents.lengths, batch.documents.images, batch.documents.videos, strict=True
    ):
        own = slice(start, start + length)
        places = {
            "image_grid_thw": slice(image, image + images),
            "video_grid_thw": slice(video, video + videos),
            "second_per_grid_ts": slice(video, video + videos),
        }
        start, image, video = own.stop, image + images, video + videos
        grids = {
            name: batch.inputs[name][seen]
            for name, seen in places.items()
            if seen.start < seen.stop and name in batch.inputs
        }
        if types is not None and any(name.endswith("grid_thw") for name in grids):
            found, _ = model.model.get_rope_index(
                ids[:, own], mm_token_type_ids=types[:, own], **grids
            )
            positions.append(found)
        else:
            positions.append(torch.arange(length, device=ids.device).expand(3, 1, length))
    return replace(batch, inputs={**batch.inputs, "position_ids": torch.cat(positions, -1)})


def _learnt(batch: Batch, model: Any) -> Tensor:
    """Return the positions of packed documents.

    Plain ones [1, L], by which transformers tells documents apart; of a class that has them, with
    those of time, height and width behind them [4, 1, L].
    """
    assert batch.documents is not None, "rows are packed"
    index = getattr(model.model, "get_rope_index", None)
    wanted = set() if index is None else set(inspect.signature(index).parameters)
    found, start = [], 0
    for length, small in zip(batch.documents.lengths, batch.small, strict=True):
        ids = batch.inputs["input_ids"][:, start : start + length]
        start += length
        plain = torch.arange(length, device=ids.device)[None]
        if index is None:
            found.append(plain)
            continue
        given = {
            name: one[None] if len(one) == length and one.ndim == 1 else one
            for name, one in small.items()
            if name in wanted
        }
        own = index(ids, **given)[0] if given else plain.expand(3, 1, -1)
        found.append(torch.cat([plain[None], own]))
    return torch.cat(found, -1)


def _with_positions_of_rows(batch: Batch, model: Any) -> Batch:
    names = ("mm_token_type_ids", "attention_mask", "second_per_grid_ts")
    given = {
        name: tensor
        for name, tensor in batch.inputs.items()
        if name in names or name.endswith("grid_thw")
    }
    if not {"input_ids", "mm_token_type_ids"} <= batch.inputs.keys():
        return batch
    positions, _ = model.model.get_rope_index(batch.inputs["input_ids"], **given)
    return replace(batch, inputs={**batch.inputs, "position_ids": positions})
