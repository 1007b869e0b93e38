"""Memory that a constructor leaves uninitialized: filled, so that it is no matter of chance."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operations of torch whose results have whatever was in the memory."""


class _Filled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte = byte

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if (
            func._schema.name.removeprefix("aten::") in _EMPTY
            and type(made) is Tensor
            and made.device.type == "cpu"
            and made.layout == torch.strided
        ):
            made.untyped_storage().fill_(self.byte)  # type: ignore[attr-defined]
        return made


@contextmanager
def uninitialized_memory_is(byte: int) -> Iterator[None]:
    """Fill memory that torch does not initialize with one byte.

    Two objects whose memory was filled otherwise differ wherever nothing was written; left alone,
    they differ where memory was in use before, and so in some loads alone.
    """
    with _Filled(byte):
        yield
