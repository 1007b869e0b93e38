"""One pass over the bytes of all files, for values that are not finite, and for digests."""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np

from vtool.loading.checkpoint.blocks import BLOCK_BYTES, Block, BlockPart, blocks, whole_tensors
from vtool.loading.checkpoint.dtypes import Bytes
from vtool.loading.checkpoint.headers import Header, Tensor


@dataclass(slots=True)
class NonFinite:
    """The values of a tensor that are not finite."""

    file: Path
    tensor: Tensor
    nans: int = 0
    infinities: int = 0
    first: int = 2**63
    """The first of them, as an index into the flattened tensor."""


@dataclass(slots=True)
class Scan:
    """The findings of one pass over the files."""

    nonfinite: list[NonFinite] = field(default_factory=list)
    """By file and place."""
    digests: dict[Path, str] = field(default_factory=dict)
    """xxh3-128 of each file, as `xxhsum -H2` prints it, where asked for."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Files that could not be read to their end, and why."""


def scan(headers: Sequence[Header], *, threads: int, digest: bool) -> Scan:
    """Read every byte of the tensors once, and test the numbers.

    Each thread reads into a buffer of its own. Blocks are handed out in order, so that the threads
    share one large file as well as many small ones.
    """
    pass_ = _Pass(headers, digest)
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(pass_.work) for _ in range(threads)]:
            done.result()
    order = {header.file: number for number, header in enumerate(headers)}
    found = sorted(pass_.found.values(), key=lambda item: (order[item.file], item.tensor.start))
    digests = {
        file: state.hexdigest()
        for file, state in pass_.states.items()
        if file not in pass_.unreadable
    }
    return Scan(found, digests, pass_.unreadable)


class _Pass:
    """The state that the threads share."""

    def __init__(self, headers: Sequence[Header], digest: bool) -> None:
        self.tensors = {header.file: whole_tensors(header) for header in headers}
        self.blocks: Iterator[tuple[int, Block]] = enumerate(
            block for header in headers for block in _read_blocks(header, digest)
        )
        self.found: dict[tuple[Path, int, str], NonFinite] = {}
        self.unreadable: dict[Path, str] = {}
        self.lock = threading.Lock()
        self.states = {}
        if digest:
            import xxhash

            self.states = {header.file: xxhash.xxh3_128() for header in headers}
        self.hashed = 0  # blocks that are in the digests: they must enter in order
        self.turn = threading.Condition()

    def work(self) -> None:
        """Read and check blocks until none is left."""
        buffer = np.empty(BLOCK_BYTES, np.uint8)
        descriptor, opened = -1, None
        try:
            while True:
                with self.lock:
                    number, block = next(self.blocks, (0, None))
                if block is None:
                    return
                try:
                    if block.header.file != opened:
                        if descriptor >= 0:
                            os.close(descriptor)
                        descriptor, opened = -1, None
                        descriptor, opened = (
                            os.open(block.header.file, os.O_RDONLY | os.O_CLOEXEC),
                            block.header.file,
                        )
                    _read_into(descriptor, buffer[: block.length], block.offset)
                except OSError as error:
                    with self.lock:
                        self.unreadable.setdefault(
                            block.header.file,
                            f"at byte {block.offset:,}: {error.strerror or error}",
                        )
                    self._hash(number, block, None)
                    continue
                self._hash(number, block, buffer[: block.length])
                for piece in block.pieces:
                    if piece.type.suspicious(buffer[piece.start : piece.end]):
                        self._record(block, piece, buffer)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _hash(self, number: int, block: Block, data: Bytes | None) -> None:
        if not self.states:
            return
        with self.turn:
            self.turn.wait_for(lambda: self.hashed == number)
        if data is not None:
            # alone here: nobody else's turn comes before the next line
            self.states[block.header.file].update(data.data)
        with self.turn:
            self.hashed += 1
            self.turn.notify_all()

    def _record(self, block: Block, piece: BlockPart, buffer: Bytes) -> None:
        """Count the values of each tensor that are not finite."""
        nans, infinities = piece.type.nans_and_infinities(buffer[piece.start : piece.end])
        tensors, begin, size = (
            self.tensors[block.header.file],
            block.offset + piece.start,
            piece.type.itemsize,
        )
        places = np.flatnonzero(nans | infinities)
        while len(places):
            tensor = _holding(tensors, begin + int(places[0]) * size)
            inside = places[: np.searchsorted(places, (tensor.end - begin) // size)]
            complex_parts = 2 if tensor.dtype == "C64" else 1
            first = (begin + int(inside[0]) * size - tensor.start) // size // complex_parts
            with self.lock:
                key = (block.header.file, tensor.start, tensor.name)
                item = self.found.setdefault(key, NonFinite(block.header.file, tensor))
                item.nans += int(nans[inside].sum())
                item.infinities += int(infinities[inside].sum())
                item.first = min(item.first, first)
            places = places[len(inside) :]


def _read_blocks(header: Header, digest: bool) -> Iterator[Block]:
    """Yield the blocks of a file; without a digest, none behind its last tensor.

    A file may be of any length there, which is a finding about its header.
    """
    end = header.size if digest else max((one.end for one in header.tensors), default=0)
    return takewhile(lambda block: block.offset < end, blocks(header))


def _holding(tensors: Sequence[Tensor], byte: int) -> Tensor:
    """Return the tensor that has this byte of the file."""
    return tensors[bisect_right(tensors, byte, key=lambda tensor: tensor.start) - 1]


def _read_into(descriptor: int, buffer: Bytes, offset: int) -> None:
    """Fill the buffer from a place of the file.

    Raises OSError where the file has become shorter.
    """
    read = 0
    view = buffer.data
    while read < len(view):
        count = os.preadv(descriptor, [view[read:]], offset + read)
        if count == 0:
            raise OSError("the file has become shorter")
        read += count
