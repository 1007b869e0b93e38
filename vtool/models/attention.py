"""Attention functions for packed documents and for NPUs, in transformers' `AttentionInterface`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from vtool.models.masks import to_npu_compressed, to_npu_dense, to_sdpa, to_tnd

DOCUMENT_ATTENTION, ROW_ATTENTION = "vtool_documents", "vtool_rows"
"""The names in `config._attn_implementation`, where rows are packed and where they are not.

Both name one function, which keeps documents apart.
"""


def use_document_attention(model: nn.Module) -> None:
    """Let a transformers model's language model attend inside each packed document alone.

    Without documents it is transformers' own `sdpa`, except on an NPU.
    """
    _register(model, DOCUMENT_ATTENTION)


def use_row_attention(model: nn.Module) -> None:
    """Let a transformers language model use the NPU's operator for rows that are not packed.

    It gets a mask of the polarity and the form that it takes. Left to transformers, padding on the
    left would see nothing: an empty row of the softmax.
    """
    _register(model, ROW_ATTENTION)


def _register(model: nn.Module, name: str) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, row_mask)
    text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
    text._attn_implementation = name


def row_mask(**given: Any) -> Tensor | None:
    """Return the mask of padded rows: transformers' `sdpa_mask`, in which padding sees itself.

    In transformers it does not, and on the left it sees nothing: an empty row of the softmax, which
    is NaN in some kernels.

    Args:
        given: the arguments of transformers' mask functions.

    Returns:
        bool [B, 1, Sq, Sk], True may attend; on an NPU True is masked, as its operator takes it:
        inverted once for all layers, each of which keeps it for its backward pass. None where the
        mask is no more than causal.
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
    """Compute causal attention inside each document of a row, without a mask of L × L.

    The numbers are those of rows of their own.

    Args:
        module: the layer.
        query: [1, N, L, D].
        key: [1, K, L, D], where K divides N.
        value: as `key`.
        attention_mask: of rows without documents, as `mask_of_rows` makes it on that device.
        scaling: of the scores; None: 1/√D.
        dropout: the probability of dropping a weight.
        documents: their lengths, of which L is the sum.
        more: passed on to transformers' `sdpa`.

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
    split = zip(*(torch.split(one, lengths, 2) for one in (query, key, value)), strict=True)
    computed = [
        scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=shared
        )
        for q, k, v in split
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
    """Compute rows [B, N, S, D] on an NPU.

    Args:
        mask: as of `to_npu_dense`. Without one attention is causal, of which the operator must be
            told: it takes None for no mask at all.
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
    """Return the scale of the scores; the operator's default is 1."""
    return query.shape[-1] ** -0.5 if scaling is None else scaling
