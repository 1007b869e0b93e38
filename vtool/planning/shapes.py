"""Compute with shapes where weights take part, and with values where only integers do.

torch's FakeTensorMode computes no values at all; but a vision tower looks at the sizes of its
images, and a mask says how many features go where. These are small, and are computed.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_SMALL = 2**20
_ATEN = torch.ops.aten


class ShapesMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """FakeTensorMode, in which what depends on no large tensor of floats has values."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        tensors = [one for one in tree_leaves((args, given)) if isinstance(one, Tensor)]
        if any(isinstance(one, FakeTensor) for one in tensors):
            if func in (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default):
                args = (args[0], _integers(args[1]), *args[2:])
            return super().__torch_dispatch__(func, types, args, given)
        if tensors:
            real = all(
                one.dtype.is_floating_point is False or one.numel() <= _SMALL for one in tensors
            )
        else:
            filled = torch.int64 if len(args) > 1 and type(args[1]) in (int, bool) else None
            dtype = given.get("dtype") or filled or torch.get_default_dtype()
            real = not dtype.is_floating_point or not func.name().startswith(
                ("aten::empty", "aten::zeros", "aten::ones", "aten::full", "aten::rand")
            )
        if real and not any(one.is_meta for one in tensors):
            return func(*args, **given)
        return super().__torch_dispatch__(func, types, args, given)


def _integers(indices: Any) -> list[Any]:
    """Return indices without masks, whose values are known, in the place of their shapes."""
    found: list[Any] = []
    for one in indices:
        if isinstance(one, Tensor) and one.dtype == torch.bool and not isinstance(one, FakeTensor):
            found += one.nonzero().unbind(1)
        else:
            found.append(one)
    return found


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Keep torch from printing what an operation raises: the caller reports it in a line."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class FirstShares(TorchFunctionMode):
    """Cuts a tensor's first share off in the place of all of them: of 1,024, FSDP2 takes one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.chunk:
            tensor, count, dim = _given_to_chunk(*args, **(kwargs or {}))
            first = tensor.narrow(dim, 0, -(-tensor.shape[dim] // count))
            return (first,) * count
        return func(*args, **(kwargs or {}))


def _given_to_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, int, int]:
    return input, chunks, dim
