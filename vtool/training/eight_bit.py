"""AdamW whose two running means are kept in eight bits, by torchao: codes, and a scale a block.

A block lies within a row, so that neither ranks that share out rows nor an engine change what is
rounded. torchao's own class takes blocks of a rank's share, and compiles each update. The update
itself is torchao's, in float32: a step rounds what it leaves for the next, not what it applies.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from vtool.diagnostics import Diagnostic

SMALLEST = 4096
"""A parameter with fewer elements keeps its means in float32, as torchao's and bitsandbytes' do."""
BLOCK, SMALLEST_BLOCK = 256, 64
"""The most elements that share a scale, and the fewest: with fewer, scales would cost too much."""
_AT_ONCE = 2**24
"""Elements that are updated together: what they need besides is some float32 copies of them."""
_MEANS = {"exp_avg": True, "exp_avg_sq": False}
"""The running means, and whether their elements have a sign."""


def missing_torchao() -> Diagnostic | None:
    """Return the finding that torchao is not installed, if it is not."""
    if find_spec("torchao") is not None:
        return None
    return Diagnostic(
        "extra-not-installed",
        "an optimizer with states of 8 bit needs the extra `lowbit`: torchao is not installed",
        "pip install 'vtool[lowbit]', or set optim.states=float32",
        "optim.states",
    )


def block_of(shape: Sequence[int]) -> int | None:
    """Return how many elements of a parameter share a scale; None if it keeps float32.

    Args:
        shape: that of the whole parameter, whatever share of it is on a rank.
    """
    row = prod(shape[1:])
    if len(shape) < 2 or row * shape[0] < SMALLEST:
        return None
    largest = next(size for size in range(min(BLOCK, row), 0, -1) if row % size == 0)
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
        torchao = _import_torchao()
        state = self.state[parameter]
        if not state:
            state.update(_new_state(parameter))
        state["step"] += 1
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
                table = torch.tensor(torchao.tables[signed](), device=codes.device)
                means.append(torchao.unpack(codes, table, scale.view(-1)))
                kept.append((codes, scale, table))
            torchao.update(
                weight[part],
                gradient[part],
                state["step"].double(),  # of 1 - beta ** step little would be left
                *means,
                None,
                group["lr"],
                *group["betas"],
                group["weight_decay"],
                group["eps"],
                True,
                False,
            )
            for value, (codes, scale, table) in zip(means, kept, strict=block is not None):
                of_one, largest = torchao.scaled(value, block)
                codes.copy_(codes_of(of_one, table))
                scale.copy_(largest.view(scale.shape))


def codes_of(numbers: Tensor, table: Tensor) -> Tensor:
    """Return the code of each number from -1 to 1: torchao's, which searches in eight passes."""
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


@dataclass(frozen=True, slots=True)
class _Torchao:
    """The functions and tables of torchao that an update needs."""

    update: Any
    unpack: Any
    scaled: Any
    tables: Mapping[bool, Any]
    """Numbers by code, of means with a sign and without."""


def _import_torchao() -> _Torchao:
    """Import torchao.

    It says of each of its kernels for GPUs that it is not there, which nothing here needs.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        from torchao.optim import quant_utils, subclass_8bit
        from torchao.optim.adam import single_param_adam
    finally:
        logging.disable(before)
    tables = {True: subclass_8bit.get_qmap_signed, False: subclass_8bit.get_qmap_unsigned}
    return _Torchao(
        single_param_adam, quant_utils.dequant_with_qmap, quant_utils.scale_tensor, tables
    )
