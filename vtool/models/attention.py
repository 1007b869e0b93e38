"""Attention of our own, through transformers' `AttentionInterface`:

inside each of the documents that share a row, and on an NPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from vtool.models.masks import to_npu_compressed, to_npu_dense, to_sdpa, to_tnd

BY_DOCUMENT, BY_ROW = "vtool_documents", "vtool_rows"
"""Its names in `config._attn_implementation`, where rows are packed and where they are not.

It is one function: both heed documents.
"""


def attend_by_document(model: nn.Module) -> None:
    """Give the language part of a transformers model this attention.

    Without documents it is transformers' own `sdpa`, but on an NPU.
    """
    _attend(model, BY_DOCUMENT)


def attend_by_row(model: nn.Module) -> None:
    """The same for rows that are not packed, on an NPU: its own operator, with a mask of the
    polarity and the form that it takes.

    Left to transformers, padding on the left would see nothing: an empty row of the softmax.
    """
    _attend(model, BY_ROW)


def _attend(model: nn.Module, name: str) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_of_rows)
    text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
    text._attn_implementation = name


def mask_of_rows(**given: Any) -> Tensor | None:
    """What transformers' `sdpa_mask` makes of padded rows, bool [B, 1, Sq, Sk], True may attend;
    None where that is no more than causal.

    On an NPU it is what its operator takes, True is masked: turned around once for all layers, each
    of which keeps it for its backward. Padding sees itself here. In transformers it does not, and
    on the left it sees nothing: an empty row of the softmax, which is not a number in some kernels.
    """
    from transformers.masking_utils import sdpa_mask

    allowed: Tensor | None = sdpa_mask(**given)
    if allowed is None:
        return None
    queries, keys = allowed.shape[-2:]
    if queries == keys:
        # no token looks at it; on the right it looks at tokens itself
        padding = ~allowed.any(-2, keepdim=True)
        allowed = allowed | (padding & torch.eye(keys, dtype=torch.bool, device=allowed.device))
    return to_npu_dense(allowed) if allowed.device.type == "npu" else to_sdpa(allowed)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    documents: Sequence[int] | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Causal attention in each document of a row by itself: the same numbers as rows of their own,
    without a mask of L × L.

    Args:
        query: [1, N, L, D]; key and value [1, K, L, D], where K divides N.
        attention_mask: of rows without documents, as `mask_of_rows` makes it on that device.
        documents: lengths, of which L is the sum.

    Returns:
        [1, L, N, D], and None in the place of the weights.

    Raises:
        ValueError: where lengths and tokens disagree, or a mask comes with documents: one of both
            would be silently ignored.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    on_npu = query.device.type == "npu"
    if documents is None:
        if on_npu:
            return _on_npu(query, key, value, attention_mask, scaling, dropout), None
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **more
        )
        return plain
    if attention_mask is not None or len(query) != 1 or sum(documents) != query.shape[2]:
        given = f"documents of {sum(documents)} tokens in {len(query)} rows of {query.shape[2]}"
        masked = "a mask" if attention_mask is not None else "no mask"
        raise ValueError(
            f"{given}, and {masked}: one row is wanted, its documents without padding, and no mask"
        )
    if on_npu:
        return _documents_on_npu(query, key, value, documents, scaling, dropout), None
    shared = query.shape[1] != key.shape[1]
    lengths = list(documents)
    parts = zip(*(torch.split(one, lengths, 2) for one in (query, key, value)), strict=True)
    computed = [
        scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=shared
        )
        for q, k, v in parts
    ]
    return torch.cat(computed, 2).transpose(1, 2), None


def _on_npu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """Rows [B, N, S, D]; the mask is `to_npu_dense`. Without one attention is causal, of which the
    operator must be told: it takes None for no mask at all.
    """
    import torch_npu  # type: ignore[import-not-found]

    mode, given = (3, to_npu_compressed(query.device)) if mask is None else (0, mask)
    out: Tensor = torch_npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "BNSD",
        atten_mask=given,
        sparse_mode=mode,
        scale=_scale(query, scaling),
        keep_prob=1.0 - dropout,
    )[0]
    return out.transpose(1, 2)


def _documents_on_npu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Sequence[int],
    scaling: float | None,
    dropout: float,
) -> Tensor:
    import torch_npu

    ends = to_tnd(documents)
    q, k, v = (one[0].transpose(0, 1).contiguous() for one in (query, key, value))  # [L, N, D]
    out: Tensor = torch_npu.npu_fusion_attention(
        q,
        k,
        v,
        query.shape[1],
        "TND",
        atten_mask=to_npu_compressed(query.device),
        sparse_mode=3,
        scale=_scale(query, scaling),
        keep_prob=1.0 - dropout,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
    )[0]
    return out[None]


def _scale(query: Tensor, scaling: float | None) -> float:
    """The operator's own is 1."""
    return query.shape[-1] ** -0.5 if scaling is None else scaling
