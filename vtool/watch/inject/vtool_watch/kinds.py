"""The kinds of micro-batches, plain, padded and packed, and the places that are text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .rows import Document, documents

UNKNOWN_KIND = "other"
"""The kind of a micro-batch whose mask shows neither padding nor where a text begins."""


def own_mask(inputs: dict[str, Any]) -> Any:
    """Return the attention mask of a batch: of several, by kinds of layers, the first."""
    mask = inputs.get("attention_mask")
    if isinstance(mask, dict):
        mask = next((each for each in mask.values() if isinstance(each, Tensor)), None)
    return mask


def text_numbers(mask: Any, ids: Tensor) -> Any:
    """Return the mask; one of four dimensions as the number of each text: 1, 1, 2, 2, 2, 0.

    A text begins where a position sees itself and nothing before it. What does not see itself is
    padding. None for a mask that is made otherwise, such as one of windows.
    """
    if not isinstance(mask, Tensor) or mask.dim() < 3:
        return mask
    length = ids.shape[-1]
    known = mask.dtype == torch.bool or mask.is_floating_point()
    if not known or mask.dim() != 4 or mask.shape[-2:] != (length, length):
        return None
    sees = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]
    itself = sees.diagonal(dim1=-2, dim2=-1)
    first, at = sees.byte().argmax(-1), torch.arange(length, device=mask.device)
    begins = itself & (first == at)
    latest = torch.where(begins, at, -1).cummax(-1).values
    if bool((itself & (first != latest)).any()):
        return None
    return torch.where(itself, begins.cumsum(-1), 0).expand(ids.shape).to(ids.device)


def batch_texts(inputs: dict[str, Any], ids: Tensor) -> list[Document]:
    """Return the texts of a batch: whole rows, where positions would cut it into single tokens."""
    texts = documents(inputs, ids)
    if texts or not isinstance(inputs.get("position_ids"), Tensor):
        return texts
    return documents({n: v for n, v in inputs.items() if n != "position_ids"}, ids)


def parted(inputs: dict[str, Any], ids: Tensor, row_mask: Any = None) -> dict[str, Any] | None:
    """Return the inputs with a mask of rows × positions that shows each text; None: it cannot be.

    Args:
        row_mask: what the model was given, where it makes a mask of four dimensions of that.
    """
    mask = own_mask(inputs)
    numbers = text_numbers(mask, ids)
    if isinstance(mask, Tensor) and numbers is None:
        return None
    if isinstance(row_mask, Tensor) and row_mask.shape == ids.shape:
        there = row_mask != 0
        numbers = there * numbers if isinstance(numbers, Tensor) else there
    return {**inputs, "attention_mask": numbers}


def kind_of_batch(inputs: dict[str, Any] | None, ids: Tensor, pads: list[int]) -> str:
    """Return `plain`, `padded`, `packed`, `packed, padded` or `other`.

    Args:
        inputs: as `parted` returns them, on the CPU.
        ids: on the CPU.
        pads: padding tokens that end no text.
    """
    if inputs is None:
        return UNKNOWN_KIND
    texts = batch_texts(inputs, ids)
    rows = [text.row for text in texts]
    padded = sum(map(len, texts)) < ids.numel()
    if pads and not padded and ids.shape[1] > 1:
        filling = torch.isin(ids, ids.new_tensor(pads))
        padded = bool((filling[:, :2].all(1) | filling[:, -2:].all(1)).any())
    kinds = [
        name for name, on in (("packed", len(rows) > len(set(rows))), ("padded", padded)) if on
    ]
    return ", ".join(kinds) or "plain"
