"""The summed NLL of a language model's head, computed without all of its logits.

The logits of K positions over V tokens are the largest tensor of a step: 2.3 GiB in float32 for
K = 4096 and V = 151,936, and their softmax and gradient as much again each. Here blocks of rows are
computed one after the other, each with its gradient, and only the gradients stay (Cut Your Losses,
arXiv 2411.09009, keeps less still, by kernels for CUDA). Not torch's `linear_cross_entropy`, which
returns its loss in the dtype of its inputs: rounded to bfloat16, it is 1 % off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vtool.data.chat import IGNORED

_BLOCK_BYTES = 3 * 2**28
"""The logits whose products are computed together, in their own dtype: 768 MiB. Each block reads
and writes the gradient of the whole weight, which on a GPU takes as long as its products do where
it has 400 rows."""
_CHUNK_BYTES = 2**27
"""The logits of a block whose softmax is computed together, in float32: 128 MiB."""
_ADDED = 2**14
"""The rows of the weight whose gradient is added together, where its dtype is a narrower one."""


@dataclass(frozen=True, slots=True)
class VocabularyShard:
    """The rows of a head's weight that one of several ranks has (Megatron-LM, arXiv 1909.08053)."""

    group: dist.ProcessGroup
    first: int
    """The token of this rank's first row."""
    tokens: int
    """Tokens of the whole vocabulary; rows behind them are padding."""


@contextmanager
def head_gives_nll(module: nn.Module, targets: Tensor) -> Iterator[bool]:
    """Let a model's head return Σ −log p(target), a scalar, in the place of logits.

    Args:
        module: the bare model, of transformers or with megatron-core's language model.
        targets: [B, K] for the positions that the head will be given; `IGNORED` ones do not count.

    Yields:
        False where this head is no plain matrix, and still returns logits.
    """
    head: Any = module.get_output_embeddings()  # type: ignore[operator]
    if copies := getattr(head, "modules_to_save", None):  # of peft: the one that is trained
        head = copies[head.active_adapter]
    compute = getattr(head, "summed_nll", None) or _nll_of_linear(head)
    if compute is None:
        yield False
        return
    with forward_replaced(head, partial(compute, targets=targets)):
        yield True


def _nll_of_linear(head: nn.Module) -> Callable[..., Tensor] | None:
    """Return the summed NLL of a plain matrix as a function; None for any other head."""
    if type(head).forward is not nn.Linear.forward or head.bias is not None:
        return None
    # The weight is looked up when it is asked for: FSDP2 gathers it then.
    return lambda hidden, targets: summed_nll_of_hidden(hidden, head.weight, targets)


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace what a module computes; its hooks still run."""
    assert "forward" not in vars(module), "its forward is replaced already"
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def summed_nll_of_hidden(
    hidden: Tensor, weight: Tensor, targets: Tensor, shard: VocabularyShard | None = None
) -> Tensor:
    """Return Σ −log softmax(hidden · weightᵀ)[target]: a scalar, in float32 at least.

    Args:
        hidden: [B, K, H].
        weight: [V, H], or this rank's rows of it; under autocast, computed with in its dtype.
        targets: [B, K]; `IGNORED` ones do not count.
        shard: where the rows are spread over ranks, each of which is given the same `hidden`. The
            sum is then the same on all, and the gradient of `hidden` is each rank's own part.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    with torch.autocast(kind, enabled=False):
        nll: Tensor = _SummedNll.apply(  # type: ignore[no-untyped-call]
            hidden.flatten(0, 1), weight, targets.flatten(), shard, torch.is_grad_enabled()
        )
    return nll


def rows_of_block(vocabulary: int, width: int) -> int:
    """Return the positions whose logits are there together.

    Args:
        vocabulary: the rows of the head's weight.
        width: the bytes of a logit.
    """
    return max(64, _BLOCK_BYTES // (vocabulary * width) // 64 * 64)


def rows_of_chunk(vocabulary: int, width: int) -> int:
    """Return the positions of a block whose softmax is computed together.

    Args:
        vocabulary: the rows of the head's weight.
        width: the bytes of a probability, which is in float32 at least.
    """
    return max(64, _CHUNK_BYTES // (vocabulary * width) // 64 * 64)


class _SummedNll(torch.autograd.Function):
    """Computes the gradients in the forward pass, block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        shard: VocabularyShard | None,
        with_gradient: bool,
    ) -> Tensor:
        matrix = weight.to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        needs_hidden, needs_weight = (with_gradient and need for need in ctx.needs_input_grad[:2])
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight: Tensor | None = None
        total = torch.zeros((), dtype=wide, device=hidden.device)
        size = rows_of_block(len(weight), hidden.itemsize)
        part = rows_of_chunk(len(weight), wide.itemsize)
        for begin in range(0, len(hidden), size):
            wanted = targets[begin : begin + size]
            # What has no target may be NaN: times its gradient of 0, it would be in the weight's.
            unasked = (wanted == IGNORED).unsqueeze(1)
            rows = hidden[begin : begin + size].masked_fill(unasked, 0)
            gradient = rows @ matrix.T  # it is the logits; each chunk's gradient takes their place
            for logits, own in zip(
                *(torch.split(one, part) for one in (gradient, wanted)), strict=True
            ):
                nll, of_logits = _chunk(logits, wide, own, shard)
                total += nll
                logits.copy_(of_logits)
                del of_logits  # or the next chunk's would be there at the same time
            if of_hidden is not None:
                there = torch.mm(gradient, matrix, out=of_hidden[begin : begin + len(rows)])
                there.masked_fill_(unasked, 0)
            if needs_weight:
                of_weight = _with_product(of_weight, gradient.T, rows, wide)
            del gradient, logits  # or the next block would be there at the same time
        if needs_weight and of_weight is None:  # there are no rows
            of_weight = torch.zeros_like(weight, dtype=wide)
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = gradients  # 1/N, in float32 at least: in bfloat16 it would be rounded
        of_hidden, of_weight = ctx.saved_tensors
        if of_weight is not None:
            same = of_weight.dtype == ctx.weight_dtype
            out = of_weight if same else torch.empty_like(of_weight, dtype=ctx.weight_dtype)
            of_weight = torch.mul(of_weight, scale, out=out)
        return (
            None if of_hidden is None else (of_hidden.to(scale.dtype) * scale).to(of_hidden.dtype),
            of_weight,
            None,
            None,
            None,
        )


def _with_product(to: Tensor | None, one: Tensor, other: Tensor, wide: torch.dtype) -> Tensor:
    """Return a sum over blocks with the product of one more, in float32 even of bfloat16."""
    if one.dtype == wide:
        return one @ other if to is None else to.addmm_(one, other)
    if one.is_cuda:  # the product of a narrower dtype is never there, and nothing is rounded
        if to is None:
            return torch.mm(one, other, out_dtype=wide)
        return torch.addmm(to, one, other, out_dtype=wide, out=to)
    if to is None:
        to = torch.zeros(len(one), other.shape[1], dtype=wide, device=one.device)
    # a part of it at a time: a CPU converts a copy of what it adds
    for there, rows in zip(*(torch.split(part, _ADDED) for part in (to, one)), strict=True):
        there.add_(rows @ other)
    return to


def _chunk(
    logits: Tensor, wide: torch.dtype, targets: Tensor, shard: VocabularyShard | None
) -> tuple[Tensor, Tensor]:
    """Return the summed NLL of some rows, and its gradient, which is finite without a target.

    Few passes over what is as large as the logits: softmax reads them in their own dtype.
    """
    first = 0
    if shard is not None:
        first = shard.first
        # no -inf: a shard may be padding alone
        logits[:, max(0, shard.tokens - first) :] = torch.finfo(logits.dtype).min
    kept = targets != IGNORED
    places = targets - first
    here = kept & (places >= 0) & (places < logits.shape[1])
    places = places.where(here, 0).unsqueeze(1)
    at_highest: Tensor
    own, at_highest = logits.max(1, keepdim=True)
    own = highest = own.squeeze(1).to(wide)
    if shard is not None:
        highest = own.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=shard.group)
    of_target = (logits.gather(1, places).squeeze(1).to(wide) - highest).where(here, 0)
    softmax = logits.softmax(1, dtype=wide)
    # Σ exp(z − highest): softmax has exp(own − own) / Σ exp(z − own) at its highest
    share = softmax.gather(1, at_highest).squeeze(1)
    sums = torch.stack([(own - highest).exp() / share, of_target])
    if shard is not None:
        mine = sums[0].clone()
        dist.all_reduce(sums, group=shard.group)
        softmax *= (mine / sums[0]).unsqueeze(1)
    nll = (sums[0].log() - sums[1]).where(kept, 0).sum()
    return nll, softmax.scatter_add_(1, places, -here.to(wide).unsqueeze(1))
