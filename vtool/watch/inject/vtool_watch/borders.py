"""Places where one text of a packed row ends and the next begins, and what is learnt there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .rows import documents


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
    first, at = sees.int().argmax(-1), torch.arange(length, device=mask.device)
    begins = itself & (first == at)
    latest = torch.where(begins, at, -1).cummax(-1).values
    if bool((itself & (first != latest)).any()):
        return None
    return torch.where(itself, begins.cumsum(-1), 0).expand(ids.shape).to(ids.device)


def border_facts(
    inputs: dict[str, Any], mask: Any, ids: Tensor, learnt: Tensor, target: Tensor, ends: Any
) -> dict[str, int]:
    """Return `borders` of `micro`: texts that others follow in their row, and what is learnt there.

    An end token with which the next text begins may be the end of the text before it: it is left
    out.

    Args:
        inputs: what was kept of the model's inputs, on the CPU.
        mask: the mask as the model was given it, where it has four dimensions.
        ids: rows x positions.
        learnt: places, of those flattened, at which a token is surely learnt.
        target: these tokens.
        ends: ids that end a text.
    """
    if isinstance(mask, Tensor) and mask.dim() == 4:
        counted = text_numbers(mask, ids)
        inputs = {**inputs, "attention_mask": counted}
    last, first = [], []
    texts = documents(inputs, ids)
    for text, after in zip(texts, texts[1:]):
        begin = int(after.columns[0])
        place = int(text.columns[-1])
        if text.row == after.row and begin == place + 1 and int(ids[after.row, begin]) not in ends:
            last.append(text.row * ids.shape[1] + place)
            first.append(int(ids[after.row, begin]))
    if not last:
        return {"texts": 0, "learnt": 0}
    begins = torch.full((ids.numel(),), -1, dtype=ids.dtype, device="cpu")
    begins[torch.tensor(last, device="cpu")] = torch.tensor(first, dtype=ids.dtype, device="cpu")
    return {"texts": len(last), "learnt": int((begins[learnt] == target).sum())}
