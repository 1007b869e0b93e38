"""`torch_npu.npu_fusion_attention` on a CPU, from its published contract (torch_npu 2.13). Never
compared with hardware.

True in `atten_mask` is masked. Without a mask all is attended to, whatever `sparse_mode` says.
Modes 2, 3 and 4 want [2048, 2048] and are causal from the left upper corner (2) or the right lower
one (3). Mode 0 takes [Sq, Sk], [1, 1, Sq, Sk], [B, 1, Sq, Sk] or [B, N, Sq, Sk], bool or uint8. In
layout TND `actual_seq_qlen` has where each document ends; of a leading 0 it makes a document
without tokens. `keep_prob` is 1 less the dropout of weights (transformers' `npu_flash_attention.py`
calls it so).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import dropout

FULL = (2048, 2048)


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    sparse_mode: int = 0,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    if input_layout == "TND":
        assert actual_seq_qlen is not None
        assert actual_seq_kvlen is not None
        assert query.shape[1] == head_num
        out, start, kv_start = [], 0, 0
        for end, kv_end in zip(actual_seq_qlen, actual_seq_kvlen, strict=True):
            q, k, v = (
                one.transpose(0, 1)[None]
                for one in (query[start:end], key[kv_start:kv_end], value[kv_start:kv_end])
            )
            (part,) = npu_fusion_attention(
                q,
                k,
                v,
                head_num,
                "BNSD",
                atten_mask=atten_mask,
                scale=scale,
                keep_prob=keep_prob,
                sparse_mode=sparse_mode,
            )
            out.append(part[0].transpose(0, 1))
            start, kv_start = end, kv_end
        return (torch.cat(out),)
    if input_layout != "BNSD":
        raise ValueError(f"layout {input_layout}")
    assert query.shape[1] == head_num
    groups = head_num // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    masked = _masked(query, key, atten_mask, sparse_mode)
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(masked, -math.inf)
    weights = scores.softmax(-1).masked_fill(masked.all(-1, keepdim=True), 0.0)
    return (dropout(weights, 1.0 - keep_prob) @ value,)


def _masked(query: Tensor, key: Tensor, mask: Tensor | None, sparse_mode: int) -> Tensor:
    (rows, heads, queries, _), keys = query.shape, key.shape[2]
    if mask is None:
        return torch.zeros(1, 1, queries, keys, dtype=torch.bool)
    if mask.dtype not in (torch.bool, torch.uint8):
        raise TypeError(f"atten_mask of {mask.dtype}")
    if sparse_mode in (2, 3, 4):
        if tuple(mask.shape) != FULL:
            raise ValueError(f"sparse_mode {sparse_mode} wants {FULL}, not {tuple(mask.shape)}")
        offset = 0 if sparse_mode == 2 else keys - queries
        return (torch.arange(keys) > torch.arange(queries)[:, None] + offset)[None, None]
    if tuple(mask.shape) not in (
        (queries, keys),
        (1, 1, queries, keys),
        (rows, 1, queries, keys),
        (rows, heads, queries, keys),
    ):
        raise ValueError(f"atten_mask of shape {tuple(mask.shape)}")
    return (
        mask.bool().expand(rows, heads, queries, keys)
        if mask.ndim == 4
        else mask.bool()[None, None]
    )
