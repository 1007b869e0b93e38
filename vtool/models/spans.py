"""Spans of what is attended to by lengths.

They are the documents of a packed row, the frames of images, or the windows of a vision tower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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
        return cls(tuple(lengths), ends)

    @classmethod
    def ending_at(cls, ends: Tensor) -> "Spans":
        """Return the spans that end there, read off the device of `ends` (cu_seqlens)."""
        places = ends.tolist()
        return cls(tuple(end - start for start, end in pairwise(places)), ends)

    @property
    def longest(self) -> int:
        """The length of the longest."""
        return max(self.lengths)

    @property
    def tokens(self) -> int:
        """The tokens of all."""
        return sum(self.lengths)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Spans":
        """Return them with another tensor of ends, such as one on another device."""
        return Spans(self.lengths, change(self.ends))
