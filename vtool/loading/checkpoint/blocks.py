"""The blocks of a file: each is read once, and its pieces hold numbers of one type."""

from collections.abc import Iterator
from dataclasses import dataclass

from vtool.loading.checkpoint.dtypes import FLOATS, Float
from vtool.loading.checkpoint.headers import Header, Tensor

BLOCK_BYTES = 512 << 10
"""Bytes of a block, which stays in a core's cache between being read and being tested.

Measured as the fastest from 128 KiB to 2 MiB.
"""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Bytes `start` to `end` of a block: numbers of one type, perhaps of several tensors.

    None of these numbers is cut by the block's ends.
    """

    start: int
    end: int
    type: Float


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of a file that are read at once, and the pieces to test in them."""

    header: Header
    offset: int
    length: int
    pieces: tuple[BlockPart, ...]


def blocks(header: Header) -> Iterator[Block]:
    """Yield the blocks of a whole file, in order.

    Bytes of no tensor, or of one without floats, are in a block, but in no piece.
    """
    offset = 0
    pieces: list[BlockPart] = []
    for start, end, type in _spans(header):
        position = start
        # An array of numbers must begin at a multiple of their size, which a header of odd length
        # does not promise within the file.
        if type and (start - offset) % type.itemsize:
            yield Block(header, offset, start - offset, tuple(pieces))
            offset, pieces = start, []
        while position < end:
            stop = min(end, offset + BLOCK_BYTES)
            if type:
                stop -= (stop - position) % type.itemsize
                if stop > position:
                    pieces.append(BlockPart(position - offset, stop - offset, type))
            if stop < end:
                yield Block(header, offset, stop - offset, tuple(pieces))
                offset, pieces = stop, []
            position = stop
    if offset < header.size:
        yield Block(header, offset, header.size - offset, tuple(pieces))


def whole_tensors(header: Header) -> list[Tensor]:
    """Return the tensors whose bytes are all there, and belong to no other tensor.

    One that overlaps another, or is cut off, is a finding whatever its values.
    """
    found, end = [], 0
    for tensor in header.tensors:
        if tensor.start >= end and tensor.start < tensor.end <= header.size:
            found.append(tensor)
            end = tensor.end
    return found


def _spans(header: Header) -> Iterator[tuple[int, int, Float | None]]:
    """Yield start, end and type of neighboring bytes of one type.

    Tensors are often smaller than a block, and their neighbors mostly of the same type.
    """
    start, end, type = 0, 0, None
    for tensor in whole_tensors(header):
        dtype = FLOATS.get(tensor.dtype)
        if dtype is not type or tensor.start != end:
            yield start, end, type
            if tensor.start > end:
                yield end, tensor.start, None
            start, type = tensor.start, dtype
        end = tensor.end
    yield start, end, type
    yield end, header.size, None
