"""Counts the elements of a parameter that were written: views of its memory, and their union."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor

MOST_RUNS = 4_000_000
"""Runs of neighboring elements that are joined; a view with more is taken as it is."""


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A view of a memory, in elements."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> "MemoryView":
        """Return the view that a tensor is of its memory."""
        return MemoryView(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.sizes)

    def view_of(self, tensor: Tensor) -> Tensor:
        """Return this view of a tensor that stands for a memory from its beginning on."""
        return tensor.as_strided(self.sizes, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Covered:
    """The number of a parameter's elements that were written, and the first that was not."""

    elements: int
    of: int
    first_gap: int | None
    overlaps: bool
    """Elements were written more than once."""
    known: bool = True
    """False where there were too many runs to be joined."""


def cover(whole: MemoryView, written: Iterable[MemoryView]) -> Covered:
    """Return the part of a parameter that the writes cover, each element counted once."""
    of, runs, count = whole.numel, [], 0
    for place in written:
        found = _runs(place)
        if found is None:
            return Covered(of, of, None, False, known=False)
        runs.append(found)
        count += place.numel
    if not runs:
        return Covered(0, of, 0 if of else None, False)
    begins = np.concatenate([one for one, _ in runs]) - whole.offset
    ends = begins + np.concatenate([np.full(len(one), length) for one, length in runs])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    # a run begins a new stretch where it begins behind all before it
    new = np.concatenate([[True], begins[1:] > ends[:-1]])
    lasts = np.append(np.flatnonzero(new)[1:] - 1, len(ends) - 1)
    stretches = ends[lasts] - begins[new]
    elements = int(stretches.sum())
    first = 0 if begins[0] > 0 else int(ends[lasts[0]])
    return Covered(elements, of, first if elements < of else None, count > elements)


def _runs(place: MemoryView) -> tuple[np.ndarray, int] | None:
    """Return the first elements of the runs of neighbors, and their length.

    Dimensions are ordered by stride and joined, so that a transposed whole is one run.
    """
    kept = sorted(
        (
            (abs(stride), size)
            for size, stride in zip(place.sizes, place.strides, strict=True)
            if size > 1
        ),
        reverse=True,
    )
    if 0 in place.sizes:
        return np.empty(0, np.int64), 0
    length = 1
    while kept and kept[-1][0] == length:
        length *= kept.pop()[1]
    if prod(size for _, size in kept) > MOST_RUNS:
        return None
    begins = np.array([place.offset], np.int64)
    for stride, size in kept:
        begins = (begins[:, None] + stride * np.arange(size, dtype=np.int64)).reshape(-1)
    return begins, length
