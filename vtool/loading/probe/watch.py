"""A watch over every operation of a load.

It notes which checkpoint tensors are read, into which parameters they go, and where they lose bits.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .arrived import ElementTrace
from .sources import TrackedSource

# Operations that pass on the same memory and read none of it.
VIEWS = frozenset(
    {
        "view",
        "slice",
        "select",
        "narrow",
        "transpose",
        "t",
        "permute",
        "unsqueeze",
        "squeeze",
        "detach",
        "alias",
        "expand",
        "_unsafe_view",
        "split",
        "chunk",
        "reshape",
        "as_strided",
        "unbind",
        "split_with_sizes",
        "_reshape_alias",
        "diagonal",
        "unfold",
        "movedim",
        "real",
        "lift_fresh",
        "empty_like",
        "zeros_like",
        "ones_like",
        "new_empty",
        "new_zeros",
        "resize_",
        "set_",
        "numpy_T",
    }
)


class LoadWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that is active during one load from a `TrackedSource` source.

    Args:
        homes: the addresses of the model's parameters and buffers.
    """

    def __init__(self, source: TrackedSource, homes: Collection[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source
        self.read: set[str] = set()
        self.came_from: dict[int, set[str]] = {}
        """For the address of a storage, the checkpoint tensors whose values went into it."""
        self.copies = Copies()
        self.followed = ElementTrace(source.checkpoint, source.addresses, homes)
        self.narrowed: dict[str, tuple[torch.dtype, torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu"
        ]
        name = func._schema.name.split("::")[-1]
        if name in VIEWS or not inputs:
            return result
        self.followed.note(func, name, args, kwargs or {}, result)
        written = {
            id(argument)
            for argument, described in zip(args, func._schema.arguments, strict=False)
            if described.alias_info is not None and described.alias_info.is_write
        }
        origins: set[str] = set()
        for tensor in inputs:
            if id(tensor) in written and name in ("copy_", "fill_", "zero_"):
                continue
            address = storage_address(tensor)
            if given := self.source.addresses.get(address):
                self.read.add(given)
                origins.add(given)
                self._note_narrowing({given}, tensor, result)
            else:  # what was at a checkpoint tensor's address before is no part of it
                origins |= self.came_from.get(address, set())
                self._note_narrowing(self.came_from.get(address, set()), tensor, result)
        before = {storage_address(tensor) for tensor in inputs}
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
                continue
            address = storage_address(tensor)
            if address in self.source.addresses:
                continue
            if address in before:
                self.came_from.setdefault(address, set()).update(origins)
            else:
                # a new storage, perhaps at the address of a freed one
                self.came_from[address] = set(origins)
                if len(origins) == 1 and tensor.nbytes:
                    self.copies.add(next(iter(origins)), tensor)
        return result

    def _note_narrowing(self, names: set[str], tensor: Tensor, result: Any) -> None:
        """Note values that are copied or converted into a dtype that holds less than their own."""
        if not isinstance(result, Tensor) or result.numel() != tensor.numel():
            return
        for name in names:
            before = self.source.checkpoint[name].dtype
            whole = self.source.checkpoint[name]
            if loses(before, result.dtype) or _loses_integers(whole, result.dtype):
                self.narrowed[name] = (before, result.dtype)


class Copies:
    """The copies of single checkpoint tensors, and which of them were there at the same time."""

    def __init__(self) -> None:
        self._living: list[tuple[str, int, Any, int]] = []
        self._lives: list[tuple[str, int, int]] = []
        """Names with the first and the last of the copies that were made in a copy's life."""
        self._made = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Note a copy of the tensor of this name."""
        self._bury()
        self._made += 1
        storage = tensor.untyped_storage()
        reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._living.append((name, storage.data_ptr(), reference, self._made))

    def most(self, of_model: set[int]) -> int:
        """Return the most tensors of which copies were there at once.

        Args:
            of_model: the addresses of storages that the model has after the load.
        """
        self._bury()
        lives = [
            *self._lives,
            *(
                (name, born, self._made)
                for name, address, _, born in self._living
                if address not in of_model
            ),
        ]
        there: list[set[str]] = [set() for _ in range(self._made + 1)]
        for name, born, died in lives:
            for moment in range(born, died + 1):
                there[moment].add(name)
        return max(map(len, there))

    def _bury(self) -> None:
        living = []
        for copy in self._living:
            name, _, storage, born = copy
            if storage.expired():
                self._lives.append((name, born, self._made))
            else:
                living.append(copy)
        self._living = living


def loses(before: torch.dtype, after: torch.dtype) -> bool:
    """Return True if `after`, of two floating dtypes, has fewer digits or a smaller range."""
    if not (before.is_floating_point and after.is_floating_point):
        return False
    one, two = torch.finfo(before), torch.finfo(after)
    return two.eps > one.eps or two.max < one.max


def _loses_integers(tensor: Tensor, after: torch.dtype) -> bool:
    """Return True if integers of the tensor are others once they have been of dtype `after`.

    Only those that are there count: small ones are exact in every dtype. A comparison's result is
    no conversion.
    """
    before = tensor.dtype
    if before.is_floating_point or before.is_complex or torch.bool in (before, after):
        return False
    return before != after and not torch.equal(tensor.to(after).to(before), tensor)


def storage_address(tensor: Tensor) -> int:
    """Return the address of the tensor's memory; 0 where it has none, as a sparse one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
