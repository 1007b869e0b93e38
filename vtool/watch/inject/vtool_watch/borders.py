"""Places where one text of a packed row ends and the next begins, and what is learnt there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .kinds import text_numbers
from .rows import documents


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
