"""Sources of weights: a loader that gives its tensors away, and loaders that take them back."""

import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .state import as_bytes, same_bits
from .subject import NamedTensor
from .threads import run_late_tasks

POISON = 0xC7
"""The byte that fills a buffer whose tensor is no longer valid; as bfloat16, -102000."""


class OwnedSource:
    """Gives each tensor in memory of its own; every other source is compared with this one.

    Counts in `given` what it is asked for.

    Args:
        names: the tensors to give, in order; None: all.
    """

    def __init__(
        self, checkpoint: Mapping[str, Tensor], names: Sequence[str] | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.names = list(checkpoint if names is None else names)
        self.given = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[NamedTensor]:
        for name in self.names:
            self.given += 1
            yield name, self.checkpoint[name].clone()
        self.exhausted = True


class ChangeRecorder(OwnedSource):
    """Gives tensors as `OwnedSource` does; `changed` has those that a class changes in place.

    Each is looked at when the next one is asked for: who waits longer is not seen.
    """

    def __init__(self, checkpoint: Mapping[str, Tensor]) -> None:
        super().__init__(checkpoint)
        self.changed: list[str] = []

    def __iter__(self) -> Iterator[NamedTensor]:
        for name, tensor in super().__iter__():
            memory = tensor.detach()  # keeps its shape, whatever becomes of the other's
            yield name, tensor
            if not same_bits(memory, self.checkpoint[name]):
                self.changed.append(name)


class ReusableBuffer(OwnedSource):
    """Gives tensors in a ring of `slots` buffers, as a streaming loader does.

    A tensor is valid until `slots` more have been asked for, then it is destroyed.
    """

    def __init__(self, checkpoint: Mapping[str, Tensor], slots: int) -> None:
        super().__init__(checkpoint)
        self.slots = slots

    def __iter__(self) -> Iterator[NamedTensor]:
        size = max((tensor.nbytes for tensor in self.checkpoint.values()), default=0)
        ring = [
            torch.empty(size, dtype=torch.uint8) for _ in range(min(self.slots, len(self.names)))
        ]
        for number, name in enumerate(self.names):
            tensor = self.checkpoint[name]
            self.given += 1
            buffer = ring[number % len(ring)][: tensor.nbytes]
            buffer.copy_(as_bytes(tensor).reshape(-1))
            yield name, buffer.view(tensor.dtype).view(tensor.shape)
            if number + 1 >= self.slots:
                ring[(number + 1 - self.slots) % len(ring)].fill_(POISON)
        self.exhausted = True
        run_late_tasks()


class SglangMarked(ReusableBuffer):
    """Gives tensors in a ring, with SGLang's mark, which makes a class copy them.

    See sglang/srt/model_loader/weight_utils.py.
    """

    def __iter__(self) -> Iterator[NamedTensor]:
        for name, tensor in super().__iter__():
            tensor._sglang_runai_streamer_tensor = True  # type: ignore[attr-defined]
            yield name, tensor


class TrackedSource(OwnedSource):
    """Gives tensors as `OwnedSource` does, and knows which of its memory is still held, and where.

    `held` has the bytes of each tensor of which any view is left; `addresses` has the tensor at
    the address of each storage.
    """

    def __init__(self, checkpoint: Mapping[str, Tensor]) -> None:
        super().__init__(checkpoint)
        self.raw = {
            name: as_bytes(tensor).reshape(-1).numpy() for name, tensor in checkpoint.items()
        }
        self.held: dict[str, int] = {}
        self.most_held = 0
        self.most_bytes = 0
        self.addresses: dict[int, str] = {}
        self.arrays: dict[str, Callable[[], object]] = {}

    def __iter__(self) -> Iterator[NamedTensor]:
        for name in self.names:
            tensor = self.checkpoint[name]
            array = np.zeros(max(len(self.raw[name]), 1), dtype=np.uint8)
            array[: len(self.raw[name])] = self.raw[name]
            address = array.ctypes.data
            self.held[name] = array.nbytes
            self.arrays[name] = weakref.ref(array)
            weakref.finalize(array, self._released, name, address)
            self.most_held = max(self.most_held, len(self.held))
            self.most_bytes = max(self.most_bytes, sum(self.held.values()))
            view = (
                torch.from_numpy(array)[: len(self.raw[name])].view(tensor.dtype).view(tensor.shape)
            )
            self.given += 1
            self.addresses[address] = name  # last, so that the views above are not taken for reads
            del array
            yield name, view
            del view
        self.exhausted = True

    def _released(self, name: str, address: int) -> None:
        self.held.pop(name, None)
        if self.addresses.get(address) == name:
            del self.addresses[address]

    def destroy(self) -> None:
        """Overwrite the memory that is still held."""
        for reference in self.arrays.values():
            array = reference()
            if isinstance(array, np.ndarray):
                array.fill(POISON)


def shuffled(names: Sequence[str]) -> list[str]:
    """Return the names in another order, always the same."""
    mixed = list(names)
    random.Random(0).shuffle(mixed)
    return mixed


def buckets(names: Sequence[str], size: int) -> list[list[str]]:
    """Return the names in consecutive lists of `size`, as weight synchronization sends them."""
    return [list(names[start : start + size]) for start in range(0, len(names), size)]


def other_values(
    checkpoint: Mapping[str, Tensor], names: set[str] | None = None
) -> dict[str, Tensor]:
    """Return the checkpoint with other values.

    Args:
        names: the tensors to change; None: all.
    """
    generator = torch.Generator().manual_seed(7)
    changed = {
        name: (torch.randn(tensor.shape, generator=generator) * 0.5 + 0.01).to(tensor.dtype)
        if tensor.is_floating_point()
        else _turned(tensor)
        for name, tensor in checkpoint.items()
        if names is None or name in names
    }
    return {**checkpoint, **changed}


def _turned(tensor: Tensor) -> Tensor:
    """Return a tensor's elements in other places; where all are alike, other elements.

    Integers are often places in something, so that their values must stay.
    """
    elements = as_bytes(tensor)
    turned = elements.roll(1, 0)
    if torch.equal(turned, elements):
        turned[:, 0] ^= 1
    return turned.reshape(-1).view(tensor.dtype).view(tensor.shape)
