"""From a row to the tensors of one sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vtool.config.schema import Data
from vtool.data.chat import IGNORED, Chat, Turn, control_tokens_in, render_chat, render_prompt, render_question
from vtool.data.row import Row, refuse, shown
from vtool.data.sources import Rows
from vtool.models.processor import Processor


@dataclass(frozen=True, slots=True)
class Sample:
    """One row, encoded. Shapes: L tokens, P patches of width W, I images."""

    index: int
    input_ids: Tensor
    """int64 [L]"""
    labels: Tensor
    """int64 [L]; −100 where nothing is supervised"""
    pixel_values: Tensor | None
    """float32 [P, W]"""
    image_grid_thw: Tensor | None
    """int64 [I, 3]: patches along time, height and width"""
    turns: tuple[Turn, ...]
    """The supervised turns, before any truncation."""
    answer: int
    """Tokens of the last supervised answer, before any truncation and without its end token."""
    truncated: bool
    cut: int
    """Supervised tokens that the truncation has cost."""

    @property
    def supervised(self) -> int:
        return int((self.labels != IGNORED).sum())

    @property
    def images(self) -> int:
        return 0 if self.image_grid_thw is None else len(self.image_grid_thw)

    @property
    def nbytes(self) -> int:
        tensors = (self.input_ids, self.labels, self.pixel_values, self.image_grid_thw)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is asked when a row is evaluated: everything before its last supervised turn."""

    index: int
    input_ids: Tensor
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None
    reference: str
    """The text of that turn."""


def encode(rows: Rows, index: int, processor: Processor, settings: Data) -> Sample:
    """Encode row `index` of a split.

    Raises:
        Findings: of the rules VT6xx, naming the row.
    """
    row = rows.row(index)
    _check_text(row, processor)
    chat = render_chat(row, processor)
    pixels, grid = _images(row, processor)
    features = _features(grid, processor)
    ids, labels = _expand(chat.ids, chat.labels, row, features, processor)
    truncated = settings.max_length is not None and len(ids) > settings.max_length
    cut = 0
    if truncated:
        assert settings.max_length is not None
        cut = sum(label != IGNORED for label in labels[settings.max_length :])
        ids, labels = _truncate(row, ids, labels, settings.max_length, settings, processor)
    return Sample(index, torch.tensor(ids), torch.tensor(labels), pixels, grid, chat.turns, chat.answer, truncated, cut)


def encode_prompt(rows: Rows, index: int, processor: Processor) -> Prompt:
    """Encode what is before row `index`'s last supervised turn. The row has been audited, so it has one."""
    row = rows.row(index)
    ids, reference = render_prompt(row, processor)
    return Prompt(index, *_prompt(row, ids, processor), reference)


def encode_question(row: Row, processor: Processor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Encode a chat that waits for an answer: input_ids [L], pixel_values [P, W] and image_grid_thw [I, 3].

    Raises:
        Findings: of the rules VT6xx.
    """
    _check_text(row, processor)
    return _prompt(row, render_question(row, processor), processor)


def _check_text(row: Row, processor: Processor) -> None:
    if found := control_tokens_in(row, processor):
        raise refuse("control-token-in-text", f"{row.id}: the text contains {', '.join(found)}", row.origin)


def _prompt(row: Row, ids: Sequence[int], processor: Processor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    # The template has put a placeholder where each image of the *prompt* is; later turns' images are not part of it.
    pixels, grid = _images(row, processor, only=sum(token == processor.ids.image for token in ids))
    expanded, _ = _expand(ids, ids, row, _features(grid, processor), processor)
    return torch.tensor(expanded), pixels, grid


def _images(row: Row, processor: Processor, only: int | None = None) -> tuple[Tensor | None, Tensor | None]:
    from transformers.image_utils import load_image

    images: list[Any] = []
    for image in row.images[:only]:
        try:
            # As at inference: turned upright by its EXIF tag and made RGB. PIL raises where a file is cut off.
            images.append(load_image(image))
        except Exception as error:  # each decoder raises what its file format raises; PIL, where an image is too large to be meant
            named = image if isinstance(image, str) and len(image) < 200 else "its image"
            raise refuse("broken-image", f"{row.id}: {named} cannot be decoded: {shown(error)}", row.origin) from error
    if not images:
        return None, None
    try:
        encoded = processor.image_processor(images=images, return_tensors="pt")
    except ValueError as error:  # an image processor refuses an extreme aspect ratio
        raise refuse("broken-image", f"{row.id}: {error}", row.origin) from error
    return encoded["pixel_values"], encoded["image_grid_thw"]


def _features(grid: Tensor | None, processor: Processor) -> list[int]:
    """Image tokens of each image: the vision tower merges merge_size² patches into one."""
    return [] if grid is None else (grid.prod(-1) // processor.image_processor.merge_size**2).tolist()


def _expand(ids: Sequence[int], labels: Sequence[int], row: Row, features: list[int], processor: Processor) -> tuple[list[int], list[int]]:
    """Repeat each image token as often as its image has features."""
    image = processor.ids.image
    found = sum(token == image for token in ids)
    if found != len(features):
        message = f"{row.id}: the chat template wrote {found} image tokens for {len(features)} images"
        raise refuse("image-token-mismatch", message, row.origin)
    counts = iter(features)
    out_ids: list[int] = []
    out_labels: list[int] = []
    for token, label in zip(ids, labels, strict=True):
        times = next(counts) if token == image else 1
        out_ids += [token] * times
        out_labels += [label] * times
    return out_ids, out_labels


def _truncate(row: Row, ids: list[int], labels: list[int], limit: int, settings: Data, processor: Processor) -> tuple[list[int], list[int]]:
    length = f"{row.id} has {len(ids)} tokens; data.max_length is {limit}"
    if settings.on_overlong != "truncate":
        raise refuse("overlong-row", length, row.origin, parameter="data.max_length")
    if processor.ids.image in ids[limit:]:
        raise refuse("answer-cut-off", f"{length}, which cuts off image tokens", row.origin, parameter="data.max_length")
    if all(label == IGNORED for label in labels[:limit]):
        raise refuse("answer-cut-off", f"{length}, which leaves nothing of its answers", row.origin, parameter="data.max_length")
    return ids[:limit], labels[:limit]


__all__ = ["Chat", "Prompt", "Sample", "encode", "encode_prompt", "encode_question"]
