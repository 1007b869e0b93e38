"""What a process would wait for a device for, counted on a CPU."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Python's own numbers and lists of a tensor; on a CPU not all of these reach an operator.
_READS = {
    getattr(torch.Tensor, name)
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu")
}
# A number that is read, or a result with as many elements as values say.
_OPERATORS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_consecutive",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::repeat_interleave.Tensor",
)


class _Reads(TorchFunctionMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found
        self.reading = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _READS or self.reading:
            return func(*args, **(kwargs or {}))
        self.found[func.__name__] += 1
        self.reading = True  # its own operators are not counted again
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.reading = False


class _Operators(TorchDispatchMode):
    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.name(), kwargs or {}
        waits = name in _OPERATORS and given.get("output_size") is None
        if name in ("aten::index.Tensor", "aten::index_put_"):  # by a mask
            waits = any(one is not None and one.dtype == torch.bool for one in args[1])
        if waits and not self.reads.reading:
            self.reads.found[name] += 1
        return func(*args, **given)


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Yield what was waited for, by name."""
    reads = _Reads(Counter())
    with _Operators(reads), reads:
        yield reads.found
