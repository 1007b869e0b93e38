"""torch's operator behind `varlen_attn` on a CPU, from its published contract (torch 2.13).

`_varlen_attn` has no kernel for a CPU. What stands for it here is reached through torch's own
`varlen_attn`, with the arguments that the kernel would get. It has not been compared with hardware.
A window (left, right) is what a token sees before and behind itself; −1 is everything.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vtool.models.by_lengths import varlen_arguments


class VarlenEmulator(TorchDispatchMode):
    """Computes the operator by a softmax over masked scores, and notes what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.torch_attn._varlen_attn.default:
            return self._forward(*args, **(kwargs or {}))
        if func is torch.ops.torch_attn._varlen_attn_backward.default:
            return _backward(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        max_q: int,
        max_k: int,
        is_causal: bool = False,
        scale: float | None = None,
        window: Sequence[int] = (-1, -1),
        enable_gqa: bool = False,
        *_: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert type(max_q) is type(max_k) is int
        assert max_q == int(cu_q.diff().max())
        assert max_k == int(cu_k.diff().max())
        assert is_causal == (tuple(window) == (-1, 0))
        asked = "enable_gqa" in varlen_arguments()
        assert enable_gqa == (asked and query.shape[1] != key.shape[1])
        self.calls.append({"window": tuple(window), "scale": scale, "dtype": query.dtype})
        weights = _weights(query, key, cu_q, scale, window)
        out = torch.einsum("nqk,knd->qnd", weights, _widened(value, query))
        seed = torch.zeros(2, dtype=torch.uint64)
        return out, query.new_zeros(query.shape[1], len(query), dtype=torch.float32), seed


def _widened(shared: Tensor, query: Tensor) -> Tensor:
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], 1)


def _weights(
    query: Tensor, key: Tensor, cu: Tensor, scale: float | None, window: Sequence[int]
) -> Tensor:
    places = torch.arange(len(query))
    span = torch.bucketize(places, cu[1:], right=True)
    apart = places[None] - places[:, None]  # of a key behind its query
    seen = span[None] == span[:, None]
    left, right = window
    seen &= (apart >= -left) if left >= 0 else True
    seen &= (apart <= right) if right >= 0 else True
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("qnd,knd->nqk", query, _widened(key, query)) * scale
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _out: Tensor,
    _lse: Tensor,
    cu_q: Tensor,
    _cu_k: Tensor,
    _max_q: int,
    _max_k: int,
    _is_causal: bool,
    _seed: Tensor,
    scale: float | None = None,
    window: Sequence[int] = (-1, -1),
) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(query, key, cu_q, scale, window)
    of_weights = torch.einsum("qnd,knd->nqk", grad, _widened(value, query))
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_scores *= query.shape[-1] ** -0.5 if scale is None else scale
    shared = (key.shape[1], query.shape[1] // key.shape[1])

    def narrowed(whole: Tensor) -> Tensor:
        return whole.unflatten(1, shared).sum(2)

    return (
        torch.einsum("nqk,knd->qnd", of_scores, _widened(key, query)),
        narrowed(torch.einsum("nqk,qnd->knd", of_scores, query)),
        narrowed(torch.einsum("nqk,qnd->knd", weights, grad)),
    )
