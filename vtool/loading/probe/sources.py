"""Where weights come from: a loader that gives away its tensors, and those that take them back."""

import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .state import as_bytes
from .subject import Named

POISON = 0xC7
"""What a buffer holds once its tensor is no longer valid; as bfloat16, -102000."""


class Owned:
    """Gives each tensor in memory of its own:

    what every other source is compared with. Counts what it is asked for.
    """

    def __init__(
        self, checkpoint: Mapping[str, Tensor], names: Sequence[str] | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.names = list(checkpoint if names is None else names)
        self.given = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[Named]:
        for name in self.names:
            self.given += 1
            yield name, self.checkpoint[name].clone()
        self.exhausted = True


class ReusableBuffer(Owned):
    """A ring of `slots` buffers, as a streaming loader has:

    a tensor is valid until `slots` more have been asked for, then destroyed.
    """

    def __init__(self, checkpoint: Mapping[str, Tensor], slots: int) -> None:
        super().__init__(checkpoint)
        self.slots = slots

    def __iter__(self) -> Iterator[Named]:
        size = max((nbytes(tensor) for tensor in self.checkpoint.values()), default=0)
        ring = [
            torch.empty(size, dtype=torch.uint8) for _ in range(min(self.slots, len(self.names)))
        ]
        for number, name in enumerate(self.names):
            tensor = self.checkpoint[name]
            self.given += 1
            buffer = ring[number % len(ring)]
            buffer[: nbytes(tensor)].copy_(flat(tensor))
            yield name, buffer[: nbytes(tensor)].view(tensor.dtype).view(tensor.shape)
            if number + 1 >= self.slots:
                ring[(number + 1 - self.slots) % len(ring)].fill_(POISON)
        self.exhausted = True


class SglangMarked(ReusableBuffer):
    """The ring, with SGLang's mark on each tensor, by which a class that looks for it copies
    (sglang/srt/model_loader/weight_utils.py).
    """

    def __iter__(self) -> Iterator[Named]:
        for name, tensor in super().__iter__():
            tensor._sglang_runai_streamer_tensor = True  # type: ignore[attr-defined]
            yield name, tensor


class Tracked(Owned):
    """Like `Owned`;

    knows which of its memory is still held, by whatever view, and where it lies.
    """

    def __init__(self, checkpoint: Mapping[str, Tensor]) -> None:
        super().__init__(checkpoint)
        self.raw = {name: flat(tensor).numpy() for name, tensor in checkpoint.items()}
        self.held: dict[str, int] = {}
        self.most_held = 0
        self.most_bytes = 0
        self.addresses: dict[int, str] = {}
        self.arrays: dict[str, Callable[[], object]] = {}

    def __iter__(self) -> Iterator[Named]:
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
        """Overwrite what is still held."""
        for reference in self.arrays.values():
            array = reference()
            if isinstance(array, np.ndarray):
                array.fill(POISON)


def nbytes(tensor: Tensor) -> int:
    """Its size in bytes."""
    return tensor.numel() * tensor.element_size()


def flat(tensor: Tensor) -> Tensor:
    """Its bytes in a row."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def shuffled(names: Sequence[str]) -> list[str]:
    """Another order, always the same."""
    mixed = list(names)
    random.Random(0).shuffle(mixed)
    return mixed


def buckets(names: Sequence[str], size: int) -> list[list[str]]:
    """The names in consecutive pieces of `size`, as weight synchronisation sends them."""
    return [list(names[start : start + size]) for start in range(0, len(names), size)]


def other_values(
    checkpoint: Mapping[str, Tensor], names: set[str] | None = None
) -> dict[str, Tensor]:
    """The same checkpoint with other numbers:

    what was loaded before, or what a tensor that is not read may hold.
    """
    generator = torch.Generator().manual_seed(7)
    changed = {}
    for name, tensor in checkpoint.items():
        if names is not None and name not in names:
            changed[name] = tensor
        elif tensor.is_floating_point():
            changed[name] = (torch.randn(tensor.shape, generator=generator) * 0.5 + 0.01).to(
                tensor.dtype
            )
        else:
            changed[name] = _turned(tensor)
    return changed


def _turned(tensor: Tensor) -> Tensor:
    """Its elements in other places, for whole numbers are often places in something;

    where they are all alike, another in each.
    """
    elements = as_bytes(tensor)
    turned = elements.roll(1, 0)
    if torch.equal(turned, elements):
        turned[:, 0] ^= 1
    return turned.reshape(-1).view(tensor.dtype).view(tensor.shape)
