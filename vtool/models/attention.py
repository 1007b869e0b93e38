"""Attention functions of the language model and of the vision tower, for transformers.

They stand in its `AttentionInterface`, and go by lengths (`vtool.models.by_lengths`): those of the
documents in a row, of images, and of their windows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vtool.models.by_lengths import (
    KERNELS,
    OF_TRANSFORMERS,
    Form,
    attend_by_lengths,
    in_compute_dtype,
    record_flops,
)
from vtool.models.masks import to_npu_compressed, to_npu_dense, to_sdpa
from vtool.models.spans import Spans


@dataclass(frozen=True, slots=True)
class Registered:
    """The meaning of a name in `config._attn_implementation`."""

    kernel: str
    """The value of `model.attention`."""
    packed: bool = False
    """A language model keeps documents apart."""


DOCUMENT_ATTENTION, ROW_ATTENTION = "vtool_documents", "vtool_rows"
"""The names in a language model's config where rows are packed and where they are not.

Both name one function, which keeps documents apart. Behind them stands the kernel, if it is not
torch's SDPA.
"""
# transformers gives the ends of images and windows to functions with "flash" in their names
_TOWER_ATTENTION = "vtool_flash_tower"


def _named(base: str, kernel: str) -> str:
    return base if kernel == "sdpa" else f"{base}_{kernel}"


LANGUAGE_ATTENTION: Mapping[str, Registered] = {
    _named(base, kernel): Registered(kernel, base == DOCUMENT_ATTENTION)
    for base in (DOCUMENT_ATTENTION, ROW_ATTENTION)
    for kernel in KERNELS
}
"""The names that a language model's config may have."""
TOWER_ATTENTION: Mapping[str, Registered] = {
    _named(_TOWER_ATTENTION, kernel): Registered(kernel) for kernel in KERNELS
}
"""The names that a tower's config may have."""


def use_document_attention(model: nn.Module, kernel: str = "sdpa") -> None:
    """Let a transformers model's language model attend inside each packed document alone.

    Without documents it is transformers' own `sdpa`, except on an NPU and with FlashAttention.
    """
    _register(model, _named(DOCUMENT_ATTENTION, kernel))


def use_row_attention(model: nn.Module, kernel: str = "sdpa") -> None:
    """Let a transformers language model use a device's own operator for rows that are not packed.

    An NPU's gets a mask of the polarity and the form that it takes. Left to transformers, padding
    on the left would see nothing: an empty row of the softmax.
    """
    _register(model, _named(ROW_ATTENTION, kernel))


def use_tower_attention(model: nn.Module, kernel: str = "sdpa") -> None:
    """Let a transformers model's tower attend to all images and windows in one call of a kernel."""
    from transformers import AttentionInterface

    name = _named(_TOWER_ATTENTION, kernel)
    AttentionInterface.register(name, _OF_TOWER[kernel])
    tower: Any = model.model.visual  # type: ignore[union-attr]
    tower.config._attn_implementation = name


def _register(model: nn.Module, name: str) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    kernel = LANGUAGE_ATTENTION[name].kernel
    AttentionInterface.register(name, _OF_LANGUAGE[kernel])
    mask: Callable[..., Any] = flash_mask if kernel in OF_TRANSFORMERS else row_mask
    AttentionMaskInterface.register(name, mask)
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
        mask is no more than causal, or of one row without padding, whose window `attention` knows:
        of a packed row of 32k tokens the mask would be 1 GiB.
    """
    from transformers.masking_utils import sdpa_mask

    if given.get("local_size") is not None and _is_whole(given):
        return None
    allowed: Tensor | None = sdpa_mask(**given)
    if allowed is None:
        return None
    queries, keys = allowed.shape[-2:]
    if queries == keys:
        # no token looks at it; on the right it looks at tokens itself
        padding = ~allowed.any(-2, keepdim=True)
        allowed = allowed | (padding & torch.eye(keys, dtype=torch.bool, device=allowed.device))
    return to_npu_dense(allowed) if allowed.device.type == "npu" else to_sdpa(allowed)


def _is_whole(given: Mapping[str, Any]) -> bool:
    """Return whether a mask is asked for one row without padding, all of it; not on an NPU.

    There a window is a mask's.
    """
    return (
        torch.device(given.get("device", "cpu")).type != "npu"
        and given.get("attention_mask") is None
        and given["batch_size"] == 1
        and given["q_length"] == given["kv_length"]
    )


def flash_mask(**given: Any) -> Tensor | None:
    """Return the mask of padded rows for FlashAttention: which tokens are none, bool [B, S].

    On a CPU, where it is emulated, that of `row_mask`.
    """
    from transformers.masking_utils import flash_attention_mask

    if torch.device(given.get("device", "cpu")).type == "cpu":
        return row_mask(**given)
    found: Tensor | None = flash_attention_mask(**given)
    return found


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kernel: str = "sdpa",
    scaling: float | None = None,
    dropout: float = 0.0,
    documents: Spans | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention inside each document of a row, without a mask of L × L.

    The numbers are those of rows of their own.

    Args:
        module: the layer.
        query: [1, N, L, D].
        key: [1, K, L, D], where K divides N.
        value: as `key`.
        attention_mask: of rows without documents, as `row_mask` makes it on that device.
        kernel: of `KERNELS`.
        scaling: of the scores; None: 1/√D.
        dropout: the probability of dropping a weight.
        documents: of which L is the sum.
        sliding_window: the tokens that one sees, itself included, where the layer has a window.
        more: passed on to transformers' `sdpa`.

    Returns:
        [1, L, N, D], and None in the place of the weights.

    Raises:
        ValueError: where lengths and tokens disagree, or a mask comes with documents: one of both
            would be silently ignored.
    """
    place, length = query.device.type, query.shape[2]
    if documents is None and _needs_window(query, key, attention_mask, sliding_window):
        # `row_mask` made none
        documents = Spans.of((length,)).map(lambda ends: ends.to(query.device))
    if documents is None:
        if place == "npu":
            return _on_npu(query, key, value, attention_mask, scaling, dropout), None
        if kernel in OF_TRANSFORMERS and place != "cpu":
            return _rows_of_transformers(
                module,
                query,
                key,
                value,
                attention_mask,
                scaling,
                dropout,
                sliding_window,
                kernel,
            ), None
        return _sdpa(module, query, key, value, attention_mask, scaling, dropout, **more)
    if attention_mask is not None or len(query) != 1 or documents.tokens != length:
        given = f"documents of {documents.tokens} tokens in {len(query)} rows of {length}"
        masked = "a mask" if attention_mask is not None else "no mask"
        raise ValueError(
            f"{given}, and {masked}: one row is wanted, its documents without padding, and no mask"
        )
    form = Form(window=sliding_window, scale=scaling, dropout=dropout)
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    chosen = "varlen" if place == "npu" else kernel
    return attend_by_lengths(q, k, v, documents, form, chosen)[None], None


def _needs_window(query: Tensor, key: Tensor, mask: Tensor | None, window: int | None) -> bool:
    """Return whether one row without padding, and without a mask, has a window that acts."""
    length = query.shape[2]
    whole = mask is None and len(query) == 1 and length == key.shape[2]
    return whole and window is not None and window < length and query.device.type != "npu"


def tower_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    kernel: str = "sdpa",
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    spans: Sequence[Spans] = (),
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute attention both ways inside each image, or each window.

    Args:
        module: the layer.
        query: [1, N, L, D].
        key: as `query`.
        value: as `query`.
        attention_mask: None.
        kernel: of `KERNELS`.
        scaling: of the scores; None: 1/√D.
        dropout: the probability of dropping a weight.
        cu_seq_lens_q: the ends of images or windows, behind a 0. None: a tower of the user's own
            has taken them apart.
        spans: those of images, and those of windows. Where they are missing they are read off the
            device.
        more: what the language model's layers are given, the lengths of its documents among it:
            none of the tower's.

    Returns:
        [1, L, N, D], and None in the place of the weights.
    """
    if cu_seq_lens_q is None:
        return _sdpa(module, query, key, value, attention_mask, scaling, dropout, is_causal=False)
    # windows are parts of images: where there are as many, they are the same
    count = len(cu_seq_lens_q) - 1
    known = next((one for one in spans if len(one.lengths) == count), None)
    form = Form(causal=False, scale=scaling, dropout=dropout)
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    spans_here = known or Spans.ending_at(cu_seq_lens_q)
    return attend_by_lengths(q, k, v, spans_here, form, kernel)[None], None


def _sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    **more: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, mask, scaling=scaling, dropout=dropout, **more
    )
    return found


def _rows_of_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    window: int | None,
    kernel: str,
) -> Tensor:
    """Compute rows [B, N, S, D] by FlashAttention, through transformers.

    Args:
        mask: as of `flash_mask`.
    """
    from transformers.modeling_flash_attention_utils import _flash_attention_forward

    q, k, v = (one.transpose(1, 2) for one in in_compute_dtype(query, key, value))
    with record_flops(q, [q.shape[1]] * len(q)):
        out: Tensor = _flash_attention_forward(
            q,
            k,
            v,
            mask,
            query_length=q.shape[1],
            is_causal=bool(getattr(module, "is_causal", True)),
            dropout=dropout,
            softmax_scale=scaling,
            sliding_window=window,
            attn_implementation=kernel,
        )
    return out


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
        mask: as of `to_npu_dense`. Without one attention is causal, which the operator is given
            explicitly: to it, None is no mask at all.
    """
    import torch_npu  # type: ignore[import-not-found]

    query, key, value = in_compute_dtype(query, key, value)
    mode, given = (3, to_npu_compressed(query.device)) if mask is None else (0, mask)
    out: Tensor = torch_npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "BNSD",
        atten_mask=given,
        sparse_mode=mode,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,  # its default is 1
        keep_prob=1.0 - dropout,
    )[0]
    return out.transpose(1, 2)


def _of_language(kernel: str) -> Callable[..., tuple[Tensor, None]]:
    return lambda *given, **more: attention(*given, kernel=kernel, **more)


def _of_tower(kernel: str) -> Callable[..., tuple[Tensor, None]]:
    return lambda *given, **more: tower_attention(*given, kernel=kernel, **more)


# one object each: a function that is registered again is the same
_OF_LANGUAGE = {kernel: _of_language(kernel) for kernel in KERNELS}
_OF_TOWER = {kernel: _of_tower(kernel) for kernel in KERNELS}
