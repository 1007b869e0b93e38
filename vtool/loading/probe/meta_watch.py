"""A watch over a load of tensors without values: what is read, and what is written where.

Memory on the meta device has no address; each storage is known by its object, which is kept.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .coverage import MemoryView
from .headers import Entry
from .subject import NamedTensor
from .watch import VIEWS, loses

_COPIES = frozenset({"clone", "_to_copy", "contiguous"})
"""Operations whose result has the same values, converted at most, in memory of its own."""


def storage_key(tensor: Tensor) -> int:
    """Return a key for the tensor's storage, unique among those alive."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Values of a checkpoint tensor that are copied as they are, or converted."""

    tensor: str
    place: MemoryView
    dtypes: tuple[torch.dtype, ...] = ()
    """The dtypes that they go through."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write into a storage."""

    place: MemoryView
    source: TensorSource | None
    """None where what is written was computed."""
    constant: bool = False
    """A number of the class's own is written: zeros into rows that no token has."""


class MetaSource:
    """Gives tensors without values. The few that a load must be able to look at have them.

    Args:
        real_below: tensors of no more elements are read, and given with their values.
    """

    def __init__(self, entries: Mapping[str, Entry], real_below: int = 1) -> None:
        self.entries, self.real_below = entries, real_below
        self.given = 0
        self.exhausted = False
        self.now: str | None = None
        """The tensor that was given last."""
        self.storages: dict[int, str] = {}
        self.kept: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[NamedTensor]:
        for name, entry in self.entries.items():
            self.given += 1
            self.now = name
            tensor = entry.read() if entry.numel <= self.real_below else entry.on_meta()
            self.storages[storage_key(tensor)] = name
            self.kept[name] = tensor
            yield name, tensor
        self.now = None
        self.exhausted = True


class MetaWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that is active during one load from `MetaSource`."""

    def __init__(self, given: MetaSource) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = given
        self.read: dict[str, list[MemoryView]] = {}
        """For each checkpoint tensor that is read, the views of it that are."""
        self.writes: dict[int, list[Write]] = {}
        """By storage."""
        self.origins: dict[int, set[str]] = {}
        """For each storage, the checkpoint tensors whose values went into it."""
        self.narrowed: dict[str, tuple[torch.dtype, torch.dtype]] = {}
        self._looked_at: set[str | None] = set()
        """Tensors of which a number was taken: what is then written may be it."""
        self._copies: dict[int, TensorSource] = {}
        self._of_copies: dict[int, list[MemoryView]] = {}
        """For each copy of a whole tensor, the views of it that are read."""
        self._kept: list[Tensor] = []  # so that no key is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [
            argument
            for argument, described in zip(args, func._schema.arguments, strict=False)
            if isinstance(argument, Tensor)
            and described.alias_info is not None
            and described.alias_info.is_write
        ]
        if name in VIEWS or not inputs:
            return result
        only_written = name in ("copy_", "fill_", "zero_")
        origins: set[str] = set()
        copied = self._whole_tensor(name, inputs[0], result)
        for tensor in inputs:
            if not (only_written and any(tensor is one for one in written)):
                origins |= self._read(tensor, result, copied is not None)
        if name == "_local_scalar_dense" and origins:
            self._looked_at.add(self.given.now)
        for tensor in written:
            source = self._source_of(args[1]) if name == "copy_" else None
            self._write(tensor, source, origins, name in ("fill_", "zero_"))
        keys = {storage_key(tensor) for tensor in inputs}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (key := storage_key(tensor)) not in keys:
                self._kept.append(tensor)
                self.origins.setdefault(key, set()).update(origins)
                source = self._source_of(inputs[0]) if name in _COPIES else None
                if source and tensor.is_contiguous():
                    self._copies[key] = TensorSource(
                        source.tensor, source.place, (*source.dtypes, tensor.dtype)
                    )
                    if copied:
                        self._of_copies[key] = []
        return result

    def places_read(self) -> dict[str, list[MemoryView]]:
        """Return, for each checkpoint tensor that is read, the views of it that are.

        What is read of a copy of all of it counts, and all where nothing of the copy is: something
        has it.
        """
        found = {name: list(places) for name, places in self.read.items()}
        for key, places in self._of_copies.items():
            name = self._copies[key].tensor
            found[name] += places or [MemoryView.of(self.given.kept[name])]
        return found

    def _whole_tensor(self, operation: str, tensor: Tensor, result: object) -> str | None:
        """Return the checkpoint tensor of which an operation copies all, in its order."""
        source = self._source_of(tensor) if operation in _COPIES else None
        if source is None or not isinstance(result, Tensor) or not result.is_contiguous():
            return None
        kept = self.given.kept[source.tensor]
        return source.tensor if source.place == MemoryView.of(kept) else None

    def _read(self, tensor: Tensor, result: object, copied: bool) -> set[str]:
        """Note that a tensor was read, and return the checkpoint tensors that it is made of.

        Args:
            copied: all of it is copied, so that what is read of the copy counts.
        """
        key = storage_key(tensor)
        own = self.given.storages.get(key)
        origins = {own} if own else self.origins.get(key, set())
        if own:
            whole = tensor.dtype == self.given.entries[own].dtype
            place = MemoryView.of(tensor) if whole else MemoryView.of(self.given.kept[own])
            self.read.setdefault(own, []).extend([] if copied else [place])
        elif key in self._of_copies:
            copy = self._copies[key]
            whole = tensor.dtype == copy.dtypes[-1] and key not in self.writes
            self._of_copies[key].append(MemoryView.of(tensor) if whole else copy.place)
        if isinstance(result, Tensor) and result.numel() == tensor.numel():
            for name in origins:
                before = self.given.entries[name].dtype
                if loses(before, result.dtype):
                    self.narrowed[name] = (before, result.dtype)
        return origins

    def _write(
        self, tensor: Tensor, source: TensorSource | None, origins: set[str], fills: bool
    ) -> None:
        key = storage_key(tensor)
        place = MemoryView.of(tensor)
        if source and source.place.numel != place.numel:
            source = None  # one value for many
        constant = fills and not origins and self.given.now not in self._looked_at
        if place.numel:
            self.writes.setdefault(key, []).append(Write(place, source, constant))
        # a number that was taken of a tensor has no origin: it is of the one that was given last
        if not origins and self.given.now and not constant:
            origins = {self.given.now}
        self.origins.setdefault(key, set()).update(origins)

    def _source_of(self, tensor: object) -> TensorSource | None:
        """Return the checkpoint tensor that this one is a view, or a whole copy, of."""
        if not isinstance(tensor, Tensor):
            return None
        key = storage_key(tensor)
        if name := self.given.storages.get(key):
            if tensor.dtype != self.given.entries[name].dtype:
                return None  # its bytes are taken for numbers of another type
            return TensorSource(name, MemoryView.of(tensor))
        copy = self._copies.get(key)
        if copy is None or key in self.writes:
            return None
        whole = tensor.is_contiguous() and tensor.storage_offset() == 0
        same = tensor.dtype == copy.dtypes[-1] and tensor.numel() == copy.place.numel
        return copy if whole and same else None
