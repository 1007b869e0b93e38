"""The summed NLL of a language model's head, computed without all of its logits.

The logits of K positions over V tokens are the largest tensor of a step: 2.3 GiB in float32 for
K = 4096 and V = 151,936, and their softmax and gradient as much again each. Here chunks of rows are
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

_CHUNK_BYTES = 2**29
"""The logits of a chunk, in float32: 512 MiB. On a GPU each chunk reads and writes the gradient of
the whole weight, which takes as long as its products once it has fewer than 400 rows."""


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


def rows_of_chunk(vocabulary: int, width: int) -> int:
    """Return the positions whose logits are computed together.

    Args:
        vocabulary: the rows of the head's weight.
        width: the bytes of a logit.
    """
    return max(64, _CHUNK_BYTES // (vocabulary * width) // 64 * 64)


class _SummedNll(torch.autograd.Function):
    """Computes the gradients in the forward pass, chunk by chunk."""

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
        # A sum over chunks, in float32 even where they are bfloat16.
        of_weight = torch.zeros_like(weight, dtype=wide) if needs_weight else None
        total = torch.zeros((), dtype=wide, device=hidden.device)
        size = rows_of_chunk(len(weight), wide.itemsize)
        for begin in range(0, len(hidden), size):
            wanted = targets[begin : begin + size]
            # What has no target may be NaN: times its gradient of 0, it would be in the weight's.
            unasked = (wanted == IGNORED).unsqueeze(1)
            rows = hidden[begin : begin + size].masked_fill(unasked, 0)
            nll, gradient = _chunk(rows @ matrix.T, wide, wanted, shard)
            total += nll
            gradient = gradient.to(hidden.dtype)
            if of_hidden is not None:
                own = torch.mm(gradient, matrix, out=of_hidden[begin : begin + len(rows)])
                own.masked_fill_(unasked, 0)
            if of_weight is not None:
                _add_product(of_weight, gradient.T, rows)
            del gradient  # or the next chunk would be there beside it
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = gradients  # 1/N, in float32 at least: in bfloat16 it would be rounded
        of_hidden, of_weight = ctx.saved_tensors
        return (
            None if of_hidden is None else (of_hidden.to(scale.dtype) * scale).to(of_hidden.dtype),
            None if of_weight is None else of_weight.mul_(scale).to(ctx.weight_dtype),
            None,
            None,
            None,
        )


def _add_product(to: Tensor, one: Tensor, other: Tensor) -> None:
    """Add a product of matrices in place, which may be of a narrower dtype."""
    if one.dtype == to.dtype:
        to.addmm_(one, other)
    elif to.is_cuda:  # the product of a narrower dtype is never there, and nothing is rounded
        torch.addmm(to, one, other, out_dtype=to.dtype, out=to)
    else:
        to += one @ other


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
    own = highest = logits.amax(1).to(wide)
    if shard is not None:
        highest = own.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=shard.group)
    of_target = (logits.gather(1, places).squeeze(1).to(wide) - highest).where(here, 0)
    if not logits.is_cuda:  # a CPU's softmax would convert them beside themselves
        logits = logits.to(wide)
    softmax = logits.softmax(1, dtype=wide)
    del logits
    # Σ exp(z − highest): softmax has exp(own − own) / Σ exp(z − own) at its highest
    sums = torch.stack([(own - highest).exp() / softmax.amax(1), of_target])
    if shard is not None:
        mine = sums[0].clone()
        dist.all_reduce(sums, group=shard.group)
        softmax *= (mine / sums[0]).unsqueeze(1)
    nll = (sums[0].log() - sums[1]).where(kept, 0).sum()
    return nll, softmax.scatter_add_(1, places, -here.to(wide).unsqueeze(1))
