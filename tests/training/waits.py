"""Counting of the places where Python waits for the device, on a machine without one.

On a CPU nothing waits. What would, where tensors are on a device: a number that is asked for, a
list, an array, a copy to the host, and each operation whose result has as many elements as others
have values. On CUDA, `torch.cuda.set_sync_debug_mode` says it of itself.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
# A number, and results whose sizes are values.
_WAITS = {
    _ATEN._local_scalar_dense.default,
    _ATEN.nonzero.default,
    _ATEN.masked_select.default,
    _ATEN.equal.default,
    _ATEN.is_nonzero.default,
    _ATEN.repeat_interleave.Tensor,
    _ATEN._unique2.default,
    _ATEN.unique_dim.default,
    _ATEN.unique_consecutive.default,
}
_INDEX = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default}
# These read a tensor's memory, past all operations.
_READS = {"tolist", "numpy", "cpu", "__array__", "__reduce_ex__"}


_BEFORE_IT_IS_MOVED = {"with_positions"}
"""Functions of a step that are given a batch which is still in the CPU's memory
(`tests/data/test_feeding.py` holds that it is)."""


def _count(found: Counter[str]) -> None:
    """Count the innermost line that asked, outside of torch and of this file."""
    frame = outer = sys._getframe(1)
    while outer.f_back is not None:
        outer = outer.f_back
        if outer.f_code.co_name in _BEFORE_IT_IS_MOVED:
            return
    while frame.f_back is not None and (
        "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    parts = Path(frame.f_code.co_filename).parts
    found[f"{'/'.join(parts[-3:])}:{frame.f_lineno}"] += 1


class _Operations(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masked = func in _INDEX and any(
            isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1]
        )
        if masked or func in _WAITS:
            _count(self._found)
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    def __init__(self, found: Counter[str], host: Sequence[Tensor]) -> None:
        super().__init__()
        self._found, self._host = found, host

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = getattr(func, "__name__", "") in _READS and args and isinstance(args[0], Tensor)
        if named and all(args[0] is not one for one in self._host):
            _count(self._found)
        return func(*args, **(kwargs or {}))


@contextmanager
def waits(device: torch.device, host: Sequence[Tensor] = ()) -> Iterator[Counter[str]]:
    """Count by line what waits for the device: what CUDA reports, or what would wait on one.

    Args:
        device: the one that is computed on.
        host: tensors that would be in the CPU's memory there too.
    """
    found: Counter[str] = Counter()
    if device.type != "cuda":
        with _Operations(found), _Reads(found, host):
            yield found
        return
    with ExitStack() as stack:
        reported = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        stack.callback(torch.cuda.set_sync_debug_mode, before)
        torch.cuda.set_sync_debug_mode("warn")
        yield found
        for one in reported:
            if "synchroniz" in str(one.message):
                found[f"{'/'.join(Path(one.filename).parts[-3:])}:{one.lineno}"] += 1
