"""AdamW whose two running means are kept in eight bits: codes, and a scale for each block.

A block lies within a row, so that neither ranks that share out rows nor an engine change what is
rounded. The update itself is torch's, in float32: a step rounds what it leaves for the next, not
what it applies. Libraries with such an optimizer share out their blocks over a rank's part of a
weight; and transformers imports one of them, torchao, wherever it is installed (1.6 s a command).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

_SMALLEST = 4096
"""A parameter with fewer elements keeps its means in float32, as other libraries' optimizers do."""
_BLOCK, SMALLEST_BLOCK = 256, 64
"""The most elements that share a scale, and the fewest: with fewer, scales would cost too much."""
_AT_ONCE = 2**24
"""Elements that are updated together: what they need besides is some float32 copies of them."""
_LEAST = 1e-12
"""The least scale, of a block that is all zero."""
_MEANS = {"exp_avg": True, "exp_avg_sq": False}
"""The running means, and whether their elements have a sign."""


def block_of(shape: Sequence[int]) -> int | None:
    """Return how many elements of a parameter share a scale; None if it keeps float32.

    Args:
        shape: that of the whole parameter, whatever share of it is on a rank.
    """
    row = prod(shape[1:])
    if len(shape) < 2 or row * shape[0] < _SMALLEST:
        return None
    largest = next(size for size in range(min(_BLOCK, row), 0, -1) if row % size == 0)
    return largest if largest >= SMALLEST_BLOCK else None


def bytes_of_means(whole: Sequence[int], elements: int) -> int:
    """Return the bytes of both means of a parameter, of which a rank has so many elements."""
    block = block_of(whole)
    return 2 * (4 * elements if block is None else elements + 4 * (elements // block))


class AdamW8bit(torch.optim.AdamW):
    """AdamW (arXiv 1711.05101) with means in eight bits (arXiv 2110.02861).

    The state of a parameter is `step` and, for each mean, `<mean>` in float32 or `<mean>_codes`,
    uint8 of the parameter's shape, and `<mean>_scale`, a row of scales for each of its rows. They
    are shared out over ranks as the parameter is.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        assert closure is None, "a step is taken once"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(_new_state(parameter))
        block = block_of(parameter.shape)
        weight, gradient = _local(parameter.detach()), _local(parameter.grad)
        rows = max(1, _AT_ONCE // max(1, prod(weight.shape[1:])))
        for first in range(0, len(weight) if weight.dim() else 1, rows):
            part = slice(first, first + rows) if weight.dim() else ...
            means, kept = [], []
            for mean, signed in _MEANS.items():
                if block is None:
                    means.append(_local(state[mean])[part])
                    continue
                codes, scale = (
                    _local(state[f"{mean}_{kind}"])[part] for kind in ("codes", "scale")
                )
                table = table_of(signed).to(codes.device)
                blocks = table[codes.int()].view(-1, block) * scale.view(-1, 1)
                means.append(blocks.view(codes.shape))
                kept.append((codes, scale, table))
            adamw(
                [weight[part]],
                [gradient[part]],
                [means[0]],
                [means[1]],
                [],
                [state["step"].clone()],  # it is counted up for each part
                foreach=False,
                amsgrad=False,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for value, (codes, scale, table) in zip(means, kept, strict=block is not None):
                assert block is not None
                blocks = value.view(-1, block)
                largest = blocks.abs().amax(-1).clip(_LEAST)
                codes.copy_(codes_of((blocks / largest[:, None]).view(codes.shape), table))
                scale.copy_(largest.view(scale.shape))
        state["step"] += 1


@cache
def table_of(signed: bool) -> Tensor:
    """Return the value of each code, float32 [256], ascending from -1 or 0 to 1.

    An exponent of ten, and the rest of the bits for the fraction: the larger a number, the more
    (arXiv 1511.04561, and 2110.02861 without a sign).
    """
    numbers = [torch.tensor([0.0, 1.0])]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent if signed else exponent + 1) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - 6)
        numbers += [middles, -middles] if signed else [middles]
    return torch.cat(numbers).sort().values


def codes_of(numbers: Tensor, table: Tensor) -> Tensor:
    """Return the code of each number from -1 to 1: of two that are as near, the upper one's."""
    below = torch.bucketize(numbers, table, out_int32=True, right=True).sub_(1).clamp_(min=0)
    least = table[below]
    # at the table's end there is nothing above, and what is left of a number is not rounded up
    gap = torch.cat((table.diff(), table.new_zeros(1)))[below]
    up = (numbers - least >= gap * 0.5) & (below < len(table) - 1)
    return below.add_(up).to(torch.uint8)


def states_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the value of `optim.states` that a live optimizer has.

    Where it has stepped, its states say so themselves: one that keeps all its means in float32,
    though a parameter has blocks, is no optimizer with states of 8 bit.
    """
    blocks = [
        state
        for parameter, state in optimizer.state.items()
        if state and block_of(parameter.shape) is not None
    ]
    if blocks:
        narrow = all(
            getattr(state.get(f"{mean}_codes"), "dtype", None) == torch.uint8
            for state in blocks
            for mean in _MEANS
        )
        return "8bit" if narrow else "float32"
    return "8bit" if isinstance(optimizer, AdamW8bit) else "float32"


def _new_state(parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the state of a parameter that was never updated."""
    local, block = _local(parameter), block_of(parameter.shape)
    yield "step", torch.tensor(0.0)
    for mean in _MEANS:
        if block is None:
            yield mean, _as_shared(torch.zeros_like(local), parameter, parameter.shape)
            continue
        scales = prod(parameter.shape[1:]) // block
        codes = torch.zeros(local.shape, dtype=torch.uint8, device=local.device)
        scale = torch.zeros((len(local), scales), device=local.device)
        yield f"{mean}_codes", _as_shared(codes, parameter, parameter.shape)
        yield f"{mean}_scale", _as_shared(scale, parameter, (parameter.shape[0], scales))


def _as_shared(own: Tensor, parameter: Tensor, whole: Sequence[int]) -> Tensor:
    """Return this rank's share of a tensor as that of a whole one, cut as a parameter is."""
    if not isinstance(parameter, DTensor):
        return own
    stride = torch.empty(tuple(whole), device="meta").stride()
    shared = DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        shape=torch.Size(whole),
        stride=stride,
    )
    return shared.to(parameter.device)  # an offloaded one is not where its mesh is


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
