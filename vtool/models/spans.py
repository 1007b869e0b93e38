"""Spans of what is attended to by lengths.

They are the documents of a packed row, the frames of images, or the windows of a vision tower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Neighbouring spans of tokens, none of which sees another.

    Their lengths are Python's: to read them off a device, a process would have to wait for it. It
    is no tuple, since what engines do with the arguments of a forward pass must leave it alone.
    """

    lengths: tuple[int, ...]
    """Tokens of each."""
    ends: Tensor
    """The ends of the spans behind a 0 (cu_seqlens), int32 [n + 1], where the tokens are."""
    order: Tensor | None = None
    """The tokens, int64 [T], those of spans of one length together; None where most of them already
    are. The windows at an image's right edge are narrow, and part those of the full width."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Spans":
        """Return spans of these lengths, on the CPU.

        Raises:
            ValueError: a length below 1, or none.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(
                "spans have at least one token each, and there is at least one; not"
                f" {list(lengths)}"
            )
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return cls(tuple(lengths), ends, _by_length(lengths))

    @classmethod
    def ending_at(cls, ends: Tensor) -> "Spans":
        """Return the spans that end there, read off the device of `ends` (cu_seqlens)."""
        places = ends.tolist()
        lengths = tuple(end - start for start, end in pairwise(places))
        order = _by_length(lengths)
        return cls(lengths, ends, None if order is None else order.to(ends.device))

    @property
    def longest(self) -> int:
        """The length of the longest."""
        return max(self.lengths)

    @property
    def tokens(self) -> int:
        """The number of tokens of every span together."""
        return sum(self.lengths)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Spans":
        """Return these spans with changed tensors, such as moved to another device."""
        order = None if self.order is None else change(self.order)
        return Spans(self.lengths, change(self.ends), order)


def _by_length(lengths: Sequence[int]) -> Tensor | None:
    """Return the tokens of spans in the order of lengths, where this saves half of the runs."""
    runs = sum(1 for _ in groupby(lengths))
    if runs <= 2 * len(set(lengths)):
        return None
    own = torch.tensor(lengths)
    return own.repeat_interleave(own).argsort(stable=True)
