"""Follows each element of a checkpoint through a load, and says which of them are somewhere after.

What is copied into a parameter has arrived. Beside any other memory that elements are copied into
lies one with their numbers, and operations that only move values are run on the numbers too.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

_CHUNK = 2**20
NOTHING = -1
"""The number of an element that is of no checkpoint tensor."""
_COPIES = frozenset({"clone", "_to_copy", "contiguous"})
MOVES = frozenset(
    {
        "cat",
        "stack",
        "index",
        "index_select",
        "index_put",
        "index_copy",
        "gather",
        "take",
        "flip",
        "roll",
        "repeat",
        "masked_select",
        "where",
        "slice_scatter",
        "select_scatter",
    }
)
"""Operations whose results have elements of their inputs; of each there may be one in place."""
_PLACES = frozenset({"index", "indices", "mask", "condition", "repeats"})
"""Arguments that say where elements are, and are none themselves."""


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The numbers of the elements of one memory."""

    numbers: Tensor
    itemsize: int
    """Bytes of an element; as another type, the memory has other elements."""
    memory: Any
    """A weak reference to it, so that its key is not used twice."""


class ElementTrace:
    """The elements of a checkpoint, and where they are.

    Args:
        checkpoint: every tensor that is given.
        given: for the address of a memory, the tensor that was given there.
        homes: the addresses of parameters and buffers, in which elements have arrived.
    """

    def __init__(
        self, checkpoint: Mapping[str, Tensor], given: Mapping[int, str], homes: Collection[int]
    ) -> None:
        self.checkpoint, self.given, self.homes = checkpoint, given, frozenset(homes)
        self._names = list(checkpoint)
        sizes = [tensor.numel() for tensor in checkpoint.values()]
        *self._starts, count = accumulate(sizes, initial=0)
        self._first = dict(zip(self._names, self._starts, strict=True))
        self._type = torch.int32 if count < 2**31 else torch.int64
        self._arrived = torch.zeros(count, dtype=torch.bool)
        """Elements that have arrived, or were computed with: what became of these is not seen."""
        self._computed: set[str] = set()
        self._memories: dict[int, _Numbered] = {}
        self._crowded = 256
        self._last: tuple[str, Tensor] | None = None

    def note(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Follow the elements through an operation that was just run, and that is no view."""
        if name == "copy_" and self._arrives_whole(*args[:2]):
            return
        numbers = {
            id(leaf): found
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and (found := self._numbers(leaf)) is not None
        }
        if not numbers:
            return
        written = _written(func, args)
        plain = name.removesuffix("_")
        if name in ("fill_", "zero_") and id(args[0]) in numbers:
            numbers[id(args[0])].fill_(NOTHING)
        elif name == "copy_":
            self._write(args[0], numbers.get(id(args[1])))
        elif name in _COPIES and id(args[0]) in numbers:
            self._write(result, numbers[id(args[0])])
        elif plain in MOVES and self._moved(func, args, kwargs, result, numbers, written):
            pass
        elif torch.Tag.pointwise in func.tags:
            self._computed_by_element(numbers, args, kwargs, result, written)
        else:
            self._use(numbers.values())

    def landed(self, held: Iterable[str]) -> dict[str, Tensor]:
        """Return, for each checkpoint tensor, a mask of the elements that something still has.

        Elements that were computed with count as they do.

        Args:
            held: the tensors whose own memory is still held.
        """
        mask = self._arrived.clone()
        for memory in self._memories.values():
            if not memory.memory.expired():
                self._set(mask, memory.numbers)
        kept = set(held)
        return {
            name: torch.ones(tensor.numel(), dtype=torch.bool)
            if name in kept
            else mask[self._of(name)]
            for name, tensor in self.checkpoint.items()
        }

    def computed(self) -> list[str]:
        """Return the tensors with elements that were computed with."""
        return sorted(self._computed)

    def _arrives_whole(self, into: Tensor, tensor: Tensor) -> bool:
        """Note a tensor that is copied as it was given, which needs no numbers."""
        name = self.given.get(_address(tensor))
        if name is None or tensor.shape != into.shape or _address(into) not in self.homes:
            return False
        whole = self.checkpoint[name]
        if tensor.numel() != whole.numel() or tensor.dtype != whole.dtype:
            return False
        if not tensor.is_contiguous():
            return False
        self._arrived[self._of(name)] = True
        return True

    def _of(self, name: str) -> slice:
        first = self._first[name]
        return slice(first, first + self.checkpoint[name].numel())

    def _numbers(self, tensor: Tensor) -> Tensor | None:
        """Return the numbers of a tensor's elements, a view; None where none is followed."""
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return None
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is not None:
            numbers, itemsize = memory.numbers, memory.itemsize
        elif (name := self.given.get(storage.data_ptr())) is not None:
            numbers, itemsize = self._own_numbers(name), self.checkpoint[name].element_size()
        else:
            return None
        if itemsize == tensor.element_size() and storage.nbytes() <= numbers.numel() * itemsize:
            return numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        self._use([numbers])  # taken for numbers of another type
        return None

    def _own_numbers(self, name: str) -> Tensor:
        """Return the numbers of the elements of a tensor as it was given."""
        if self._last is None or self._last[0] != name:
            of = self._of(name)
            self._last = (name, torch.arange(of.start, of.stop, dtype=self._type))
        return self._last[1]

    def _write(self, tensor: Tensor, numbers: Tensor | None) -> None:
        """Note that elements have been written into a tensor; None: others than those followed."""
        if numbers is not None and _address(tensor) in self.homes:
            self._set(self._arrived, numbers)
            return
        there = self._numbers(tensor)
        if there is None and numbers is not None:
            there = self._begin(tensor)
        if there is not None:
            there.copy_(numbers) if numbers is not None else there.fill_(NOTHING)

    def _begin(self, tensor: Tensor) -> Tensor:
        """Return the numbers of a tensor in whose memory nothing was followed until now."""
        if len(self._memories) > self._crowded:
            self._memories = {
                key: one for key, one in self._memories.items() if not one.memory.expired()
            }
            self._crowded = 2 * len(self._memories) + 256
        storage, itemsize = tensor.untyped_storage(), tensor.element_size()
        numbers = torch.full((storage.nbytes() // itemsize,), NOTHING, dtype=self._type)
        reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._memories[storage._cdata] = _Numbered(numbers, itemsize, reference)
        return numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _moved(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        numbers: Mapping[int, Tensor],
        written: list[Tensor],
    ) -> bool:
        """Run an operation on numbers; return False where that cannot be done."""
        for tensor in written:
            if id(tensor) not in numbers:
                numbers = {**numbers, id(tensor): self._begin(tensor)}

        def numbered(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            found = numbers.get(id(value))
            return torch.full(value.shape, NOTHING, dtype=self._type) if found is None else found

        schema = func._schema.arguments
        given = [
            argument if described.name in _PLACES else tree_map(numbered, argument)
            for argument, described in zip(args, schema, strict=False)
        ]
        more = {
            key: value if key in _PLACES else tree_map(numbered, value)
            for key, value in kwargs.items()
        }
        try:
            found = func(*given, **more)
        except (RuntimeError, TypeError, IndexError):
            return False
        if not written:
            self._write(result, found)
        return True

    def _computed_by_element(
        self,
        numbers: Mapping[int, Tensor],
        args: Any,
        kwargs: Any,
        result: Any,
        written: list[Tensor],
    ) -> None:
        """Follow the first tensor of which each element makes one of the result's."""
        followed: Tensor | None = None
        for leaf in tree_leaves((args, kwargs)):
            if not isinstance(leaf, Tensor) or id(leaf) not in numbers:
                continue
            if any(leaf is one for one in written):
                continue  # it keeps its own
            if followed is None and not written and _alike(leaf, result):
                followed = numbers[id(leaf)]
            else:
                self._use([numbers[id(leaf)]])
        if followed is not None:
            self._write(result, followed)

    def _use(self, numbers: Iterable[Tensor]) -> None:
        for one in numbers:
            self._set(self._arrived, one)
            self._note_computed(one)

    def _note_computed(self, numbers: Tensor) -> None:
        known = numbers[numbers != NOTHING]
        if known.numel():
            first, last = int(known.min()), int(known.max())
            begin = bisect_right(self._starts, first) - 1
            end = bisect_right(self._starts, last)
            self._computed.update(self._names[begin:end])

    def _set(self, mask: Tensor, numbers: Tensor) -> None:
        for part in torch.split(numbers.reshape(-1), _CHUNK):
            mask[part[part != NOTHING].long()] = True


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _written(func: Any, args: Any) -> list[Tensor]:
    return [
        argument
        for argument, described in zip(args, func._schema.arguments, strict=False)
        if isinstance(argument, Tensor)
        and described.alias_info is not None
        and described.alias_info.is_write
    ]


def _alike(tensor: Tensor, result: object) -> bool:
    return isinstance(result, Tensor) and result.shape == tensor.shape
