"""A vision tower's windows of one size, attended to in one call.

Attention costs a window as much alone as among others, in bytes and in FLOPs. A tower of 32 blocks
has thousands of windows, and torch's trackers take longer over each call than a GPU takes.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from vtool.models.attention import TOWER_ATTENTION

# transformers gives the ends of the windows to functions with "flash" in their names.
_NAME = "vtool_plan_flash"


def attend_by_size(model: nn.Module) -> None:
    """Let a model's tower attend to all windows of one size at once, where it goes by lengths.

    The windows change places: shapes are those of the model's own, values are not.
    """
    from transformers import AttentionInterface

    config: Any = model.model.visual.config  # type: ignore[union-attr]
    if config._attn_implementation in TOWER_ATTENTION:
        AttentionInterface.register(_NAME, _attention)
        config._attn_implementation = _NAME


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute transformers' `sdpa` inside each window.

    Args:
        module: the layer.
        query: [1, N, L, D].
        key: as `query`.
        value: as `query`.
        attention_mask: None, where there are windows.
        cu_seq_lens_q: the ends of the windows, after a zero; None: there is one.
        cu_seq_lens_k: the same.
        max_length_q: of the longest.
        max_length_k: the same.
        more: passed on.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if cu_seq_lens_q is None:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **more
        )
        return whole
    sizes = Counter(cu_seq_lens_q.diff().tolist())
    parts = [size * count for size, count in sizes.items()]
    split = zip(*(torch.split(one[0], parts, 1) for one in (query, key, value)), strict=True)
    found = []
    for size, three in zip(sizes, split, strict=True):
        windows = [one.unflatten(1, (-1, size)).transpose(0, 1) for one in three]
        out, _ = sdpa_attention_forward(module, *windows, attention_mask, **more)
        found.append(out.flatten(0, 1))
    return torch.cat(found).unsqueeze(0), None
