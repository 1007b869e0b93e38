"""Batches: the tensors of one forward pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vtool.data.chat import IGNORED
from vtool.data.encode import Prompt, Sample
from vtool.data.visuals import PIXELS, joined_pixels, tables
from vtool.models.masks import keep_from_lengths, to_hf_2d
from vtool.models.patches import ByteValues
from vtool.models.processor import Processor
from vtool.models.spans import Spans
from vtool.models.tower_index import TowerIndex, TowerIndexer


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents that share a packed row, in its order."""

    lengths: tuple[int, ...]
    """Tokens of each."""
    images: tuple[int, ...]
    """Images of each, as the model is given them."""
    videos: tuple[int, ...]
    """Videos of each, as the model is given them."""
    spans: Spans = field(init=False, compare=False, repr=False)
    """The lengths, as attention is given them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", Spans.of(self.lengths))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Documents":
        """Return these documents with the tensors of their spans changed."""
        made = replace(self)
        object.__setattr__(made, "spans", self.spans.map(change))
        return made


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: B rows padded to L tokens, or one row of documents without padding."""

    inputs: dict[str, Tensor]
    """The model's keyword arguments, with their shapes.

    input_ids, attention_mask, mm_token_type_ids [B, L]; pixel_values [P, W]; image_grid_thw [I, 3];
    pixel_values_videos [P, W]; video_grid_thw [V, 3]; second_per_grid_ts [V].
    """
    columns: Tensor
    """int64 [K]: the positions from which some row of the batch must predict a token."""
    targets: Tensor
    """int64 [B, K]: the tokens to predict from there; −100 where none."""
    indices: tuple[int, ...]
    """Row numbers.

    Empty for a filler, which stands in on a rank that has no row in a step, and counts for nothing.
    """
    supervised: int
    tokens: int
    """Tokens without padding."""
    visual: int
    """Tokens that stand for images and videos."""
    padding: int
    """Places that are filled up, to the length of the longest row."""
    documents: Documents | None = None
    """The documents of a packed row, else None."""
    values: Mapping[str, ByteValues] = field(default_factory=dict)
    """The values of `pixel_values` and `pixel_values_videos`, by name, where these are bytes: they
    are looked up on the device."""
    towers: Mapping[str, TowerIndex] = field(default_factory=dict)
    """The index of the images and that of the videos, as `image_index` and `video_index`, for the
    vision tower. Without them it asks the device for the same numbers."""

    shown: int | None = None
    """The images that it has, of a family whose inputs do not tell; None: they do."""
    small: tuple[Mapping[str, Tensor], ...] = ()
    """Each document's inputs but its pixels, in packed rows of such a family."""

    def arguments(self) -> dict[str, Any]:
        """Return the model's keyword arguments: `inputs`, and the values that are no tensors."""
        own = self.documents is not None and self.shown is None
        packed = {"documents": self.documents.spans} if own and self.documents else {}
        return {**self.inputs, **packed, **self.towers}

    @property
    def images(self) -> int:
        """Images and videos that the vision tower sees: 0 where the recipe drops their inputs."""
        if self.shown is not None:
            return self.shown
        pairs = (("image_grid_thw", "pixel_values"), ("video_grid_thw", "pixel_values_videos"))
        return sum(
            len(self.inputs[grid]) for grid, pixels in pairs if {grid, pixels} <= self.inputs.keys()
        )

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device, with floats in the place of bytes.

        The CPU continues meanwhile, where the memory is pinned.
        """
        moved = self.map(lambda tensor: tensor.to(device, non_blocking=True))
        pixels = {name: one.of(moved.inputs[name]) for name, one in self.values.items()}
        return replace(moved, inputs={**moved.inputs, **pixels}, values={})

    def pin_memory(self) -> "Batch":
        """Return a copy in memory that a device reads by itself."""
        values = {name: one.pin_memory() for name, one in self.values.items()}
        return replace(self.map(lambda tensor: tensor.pin_memory()), values=values)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with all of its tensors changed, such as moved to a device."""
        return replace(
            self,
            inputs={name: change(tensor) for name, tensor in self.inputs.items()},
            columns=change(self.columns),
            targets=change(self.targets),
            documents=self.documents and self.documents.map(change),
            towers={name: index.map(change) for name, index in self.towers.items()},
        )


def collate(samples: Sequence[Sample], processor: Processor, drop: Sequence[str] = ()) -> Batch:
    """Pad samples on the right into a batch.

    Args:
        drop: inputs to leave out (`data.drop_model_inputs`); no others are.
    """
    inputs = _without(_inputs(samples, processor, left=False), drop)
    values = values_of_bytes(inputs, processor)
    # Position t predicts token t + 1; a first token has nothing before it to be predicted from.
    targets = pad_sequence(
        [sample.labels for sample in samples], batch_first=True, padding_value=IGNORED
    )[:, 1:]
    wanted = targets != IGNORED
    columns = wanted.any(0).nonzero().flatten()
    return Batch(
        inputs=inputs,
        columns=columns,
        targets=targets[:, columns],
        indices=tuple(sample.index for sample in samples),
        supervised=int(wanted.sum()),
        tokens=(tokens := sum(len(sample.input_ids) for sample in samples)),
        visual=sum(count_visual(sample.input_ids, processor) for sample in samples),
        padding=len(samples) * max(len(sample.input_ids) for sample in samples) - tokens,
        values=values,
        shown=shown(samples, inputs) if processor.whole else None,
    )


def shown(samples: Sequence[Sample], inputs: Mapping[str, Tensor]) -> int:
    """Return the images of samples; 0 where the recipe drops their inputs."""
    there = any(name.startswith("pixel_values") for name in inputs)
    return sum(sample.images for sample in samples) if there else 0


def with_tower_index(batch: Batch, indexer: TowerIndexer | None) -> Batch:
    """Return the batch with the index of the images, and of the videos, that its tower is given."""
    if indexer is None:
        return batch
    towers = {
        f"{kind}_index": indexer.index(batch.inputs[f"{kind}_grid_thw"])
        for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos"))
        if {f"{kind}_grid_thw", pixels} <= batch.inputs.keys()
    }
    return replace(batch, towers=towers)


def filler(batch: Batch) -> Batch:
    """Return the batch with nothing supervised, for a rank that has no row in a step."""
    return replace(
        batch,
        targets=torch.full_like(batch.targets, IGNORED),
        indices=(),
        supervised=0,
        tokens=0,
        visual=0,
        padding=0,
    )


def collate_prompts(
    prompts: Sequence[Prompt], processor: Processor, drop: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Pad prompts on the left, so that every answer begins at the same place.

    Args:
        drop: inputs to leave out, as in `collate`.
    """
    return _without(_inputs(prompts, processor, left=True), drop)


def _without(inputs: dict[str, Tensor], drop: Sequence[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in inputs.items() if name not in drop}


def _inputs(
    samples: Sequence[Sample | Prompt], processor: Processor, *, left: bool
) -> dict[str, Tensor]:
    ids = [sample.input_ids for sample in samples]
    input_ids = pad_sequence(
        ids,
        batch_first=True,
        padding_value=processor.ids.pad,
        padding_side="left" if left else "right",
    )
    attention_mask = to_hf_2d(keep_from_lengths([len(row) for row in ids], left=left))
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if processor.whole is None:
        inputs["mm_token_type_ids"] = token_types(input_ids, processor)
    for name in processor.whole.token_inputs if processor.whole else ():
        own = [
            sample.visuals.tokens.get(name, row.new_zeros(len(row)))
            for sample, row in zip(samples, ids, strict=True)
        ]
        inputs[name] = pad_sequence(own, batch_first=True, padding_side="left" if left else "right")
    return inputs | visual_inputs(samples, processor)


def token_types(input_ids: Tensor, processor: Processor) -> Tensor:
    """Return 1 for each image token, 2 for each video token, 0 for others.

    Transformers gives these tokens positions in three dimensions, and without this input, silently,
    plain ones.
    """
    return (input_ids == processor.ids.image).long() + 2 * (input_ids == processor.ids.video).long()


def count_visual(input_ids: Tensor, processor: Processor) -> int:
    """Return how many tokens stand for images and videos."""
    ids = processor.ids
    return int(((input_ids == ids.image) | (input_ids == ids.video)).sum())


def visual_inputs(samples: Sequence[Sample | Prompt], processor: Processor) -> dict[str, Tensor]:
    """Return pixels and grids of all images and videos; empty if there are none."""
    named = [sample.visuals.inputs for sample in samples]
    if processor.whole is not None:
        return processor.whole.join(named)
    names = dict.fromkeys(name for tensors in named for name in tensors)
    parts = {name: [tensors[name] for tensors in named if name in tensors] for name in names}
    return {
        name: joined_pixels(name, own, processor) if name in PIXELS else torch.cat(own)
        for name, own in parts.items()
    }


def values_of_bytes(inputs: dict[str, Tensor], processor: Processor) -> dict[str, ByteValues]:
    """Return the values of a batch's patches, by the name of each input that is bytes."""
    narrow = [name for name in PIXELS if name in inputs and inputs[name].dtype == torch.uint8]
    return {name: values for name in narrow if (values := tables(processor)[name]) is not None}
