"""Attention by lengths (cu_seqlens): each span of tokens attends to itself alone.

One function serves the language model (documents of a packed row, causal, perhaps with a sliding
window) and the vision tower (images and windows, both ways), on every kind of device. On a CPU each
kernel is emulated by torch's SDPA: what a device's kernel is given is tested there, and its numbers
are those of the emulation by the kernel's own contract.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.nn.functional import scaled_dot_product_attention

from vtool.models.masks import to_npu_compressed, to_tnd
from vtool.models.spans import Spans

OF_TRANSFORMERS = ("flash_attention_2", "flash_attention_3")
"""The kernels that transformers calls."""
KERNELS = ("sdpa", "varlen", *OF_TRANSFORMERS)
"""The values of `model.attention` that go by lengths."""
ATTENTION_FLOPS = "vtool: attention, FLOPs="
"""The beginning of a mark in a profile; the number is behind it."""


@dataclass(frozen=True, slots=True)
class Form:
    """The tokens that one sees of its span, and the way from scores to weights."""

    causal: bool = True
    """A token does not see what follows it."""
    window: int | None = None
    """The tokens that one sees, itself included; None: all. With `causal` alone."""
    scale: float | None = None
    """The factor of the scores; None: 1/√D."""
    dropout: float = 0.0
    """The probability of dropping a weight."""


def attend_by_lengths(
    query: Tensor, key: Tensor, value: Tensor, spans: Spans, form: Form, kernel: str = "sdpa"
) -> Tensor:
    """Compute the attention of each span to itself.

    Args:
        query: [T, N, D], span after span.
        key: [T, K, D], where K divides N.
        value: as `key`.
        spans: T is the sum of their lengths.
        kernel: of `KERNELS`. Off a CPU: `varlen` is torch's `varlen_attn` on CUDA, and
            `npu_fusion_attention` on an NPU.

    Returns:
        [T, N, D].

    Raises:
        ValueError: spans that are not those of the tokens, or what a kernel has not: it would be
            silently left out.
    """
    if spans.tokens != len(query):
        raise ValueError(f"spans of {spans.tokens} tokens, and {len(query)} tokens")
    if form.window is not None and not form.causal:
        raise ValueError(f"a window of {form.window} tokens is causal")
    place = query.device.type
    if kernel == "sdpa" or place == "cpu":
        return _by_sdpa(query, key, value, spans, form)
    query, key, value = in_compute_dtype(query, key, value)
    if kernel in OF_TRANSFORMERS:
        return by_transformers(query, key, value, spans, form, kernel)
    if place == "npu":
        return by_npu(query, key, value, spans, form)
    return by_varlen(query, key, value, spans, form)


def by_varlen(query: Tensor, key: Tensor, value: Tensor, spans: Spans, form: Form) -> Tensor:
    """Call torch's `varlen_attn`, whose windows do not count the token itself."""
    from torch.nn.attention.varlen import varlen_attn

    more: dict[str, Any] = {}
    if "enable_gqa" in varlen_arguments():
        more = {"enable_gqa": query.shape[1] != key.shape[1]}

    if form.dropout:
        raise ValueError(f"a dropout of {form.dropout}: varlen_attn has none")
    with record_flops(query, spans.lengths):
        out: Tensor = varlen_attn(  # type: ignore[assignment]
            query,
            key,
            value,
            spans.ends,
            spans.ends,
            spans.longest,
            spans.longest,
            scale=form.scale,
            window_size=(-1 if form.window is None else form.window - 1, 0 if form.causal else -1),
            **more,
        )
    return out


def varlen_arguments() -> frozenset[str]:
    """Return the names of what torch's `varlen_attn` takes; none where torch has no such function.

    torch 2.13 needs `enable_gqa` for heads that share keys. 2.11 does not need it, and 2.10
    has no windows.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(signature(varlen_attn).parameters)


def by_transformers(
    query: Tensor, key: Tensor, value: Tensor, spans: Spans, form: Form, kernel: str
) -> Tensor:
    """Call FlashAttention through transformers."""
    from transformers.modeling_flash_attention_utils import _flash_attention_forward

    if form.dropout and kernel == "flash_attention_3":
        raise ValueError(f"a dropout of {form.dropout}: FlashAttention 3 has none")
    with record_flops(query, spans.lengths):
        out: Tensor = _flash_attention_forward(
            query[None],
            key[None],
            value[None],
            None,
            query_length=len(query),
            is_causal=form.causal,
            dropout=form.dropout,
            softmax_scale=form.scale,
            sliding_window=form.window,
            cu_seq_lens_q=spans.ends,
            cu_seq_lens_k=spans.ends,
            max_length_q=spans.longest,
            max_length_k=spans.longest,
            attn_implementation=kernel,
        )
    return out[0]


def by_npu(query: Tensor, key: Tensor, value: Tensor, spans: Spans, form: Form) -> Tensor:
    """Call `npu_fusion_attention` in layout TND.

    Without a mask it attends to everything within a span, whatever its mode says.
    """
    import torch_npu  # type: ignore[import-not-found]

    if form.window is not None:
        raise ValueError(f"a window of {form.window} tokens: on an NPU there is none by lengths")
    ends = to_tnd(spans.lengths)
    more: dict[str, Any] = (
        {"atten_mask": to_npu_compressed(query.device), "sparse_mode": 3}
        if form.causal
        else {"atten_mask": None, "sparse_mode": 0}
    )
    with record_flops(query, spans.lengths):
        out: Tensor = torch_npu.npu_fusion_attention(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            query.shape[1],
            "TND",
            scale=query.shape[-1] ** -0.5 if form.scale is None else form.scale,  # its default is 1
            keep_prob=1.0 - form.dropout,
            actual_seq_qlen=ends,
            actual_seq_kvlen=ends,
            **more,
        )[0]
    return out


def record_flops(query: Tensor, lengths: Sequence[int]) -> record_function:
    """Mark an operator of whose FLOPs a profiler knows nothing, with their number.

    As torch.utils.flop_counter counts SDPA's, of all pairs of a span's tokens.

    Args:
        query: [T, N, D], or [B, T, N, D].
        lengths: of the spans, or rows.
    """
    pairs = sum(length * length for length in lengths)
    forward = 4 * query.shape[-2] * query.shape[-1] * pairs
    passes = 3.5 if torch.is_grad_enabled() and query.requires_grad else 1
    return record_function(f"{ATTENTION_FLOPS}{round(forward * passes)}")


def _by_sdpa(query: Tensor, key: Tensor, value: Tensor, spans: Spans, form: Form) -> Tensor:
    """Compute spans by torch's SDPA; neighbours of one length, such as windows, in one call."""
    # A GPU waits for the calls; to a CPU they are nothing, and copies are half of the time.
    if spans.order is not None and query.device.type != "cpu":
        return in_order_of_length(query, key, value, spans, form)
    return _runs_by_sdpa(query, key, value, spans.lengths, form)


def in_order_of_length(
    query: Tensor, key: Tensor, value: Tensor, spans: Spans, form: Form
) -> Tensor:
    """Compute spans by torch's SDPA, all of one length in one call; they have an order."""
    assert spans.order is not None
    query, key, value = (one.index_select(0, spans.order) for one in (query, key, value))
    out = _runs_by_sdpa(query, key, value, sorted(spans.lengths), form)
    return torch.empty_like(out).index_copy(0, spans.order, out)


def _runs_by_sdpa(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], form: Form
) -> Tensor:
    """Compute spans by torch's SDPA, neighbours of one length in one call."""
    shared = query.shape[1] != key.shape[1]
    runs = list(_runs(lengths))
    tokens = [length * count for length, count in runs]
    split = zip(*(torch.split(one, tokens) for one in (query, key, value)), strict=True)
    found = []
    for (length, count), three in zip(runs, split, strict=True):
        q, k, v = (one.unflatten(0, (count, length)).transpose(1, 2) for one in three)
        window = form.window if form.window is not None and form.window < length else None
        out = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if window is None else _band(length, window, query.device),
            dropout_p=form.dropout,
            scale=form.scale,
            is_causal=form.causal and window is None,
            enable_gqa=shared,
        )
        found.append(out.transpose(1, 2).flatten(0, 1))
    return found[0] if len(found) == 1 else torch.cat(found)


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the length of neighbouring spans, and how many of them have it."""
    for length, run in groupby(lengths):
        yield length, len(list(run))


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """Return the mask of a causal window, bool [L, L], True may attend."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_().triu_(1 - window)


def in_compute_dtype(*tensors: Tensor) -> Iterator[Tensor]:
    """Yield tensors as autocast would give them to torch's SDPA.

    It knows of no other kernel; and a query that was multiplied with float32 positions is float32
    again.
    """
    kind = tensors[0].device.type
    cast = torch.is_autocast_enabled(kind)
    for one in tensors:
        yield one.to(torch.get_autocast_dtype(kind)) if cast else one
