"""Permutations of any size, of which each value is computed by itself: a keyed Feistel network."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_U64 = np.uint64


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finalizer of each value, a permutation of 64 bits (Steele et al., 2014).

    Every bit of a value decides about half of the bits that come out.
    """
    values = values.astype(np.uint64) + _U64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))


def permute(places: NDArray[np.int64], size: int, key: Sequence[int]) -> NDArray[np.int64]:
    """Return the values of a permutation of `size` at some places; no others are computed.

    This formula must never change: a resumed run needs the order that it began with.

    Args:
        key: whole numbers from 0; each key has a permutation of its own.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    drawn = np.random.SeedSequence(list(key)).generate_state(_ROUNDS, np.uint64)
    keys: NDArray[np.uint64] = drawn.astype(np.uint64)
    values = _rounds(places.astype(np.uint64), half, keys)
    # the network permutes up to four times as many values: what is too large goes through again
    while len(outside := np.flatnonzero(values >= size)):
        values[outside] = _rounds(values[outside], half, keys)
    return values.astype(np.int64)


def _rounds(values: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits, mask = _U64(half), _U64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << bits) | right
