"""The tensors of a folder's safetensors files by their headers, and their bytes on demand."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint_files import shard_names
from .errors import LoadFailed, error_text

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""torch's dtype of each of the format's that has one of whole bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file, which has the bytes `start` to `end` of it."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """The number of bytes in the file."""
        return self.end - self.start

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def on_meta(self) -> Tensor:
        """Return a tensor of this shape and dtype without values."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def shaped(self, buffer: Tensor) -> Tensor:
        """Return the tensor that has the bytes of a buffer."""
        return buffer[: self.nbytes].view(self.dtype).view(self.shape)

    def read_into(self, buffer: Tensor, begin: int = 0, end: int | None = None) -> Tensor:
        """Read bytes of the tensor into the beginning of a buffer, and return that part of it.

        Raises:
            LoadFailed: the file has become shorter, or cannot be read.
        """
        length = (self.nbytes if end is None else end) - begin
        part = buffer[:length]
        if length:
            try:
                self._fill(part.numpy().data, begin)
            except OSError as error:
                raise LoadFailed(
                    f"{self.file} cannot be read: {error.strerror or error}"
                ) from error
        return part

    def _fill(self, view: memoryview, begin: int) -> None:
        descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(view):
                read = os.preadv(descriptor, [view[done:]], self.start + begin + done)
                if not read:
                    raise OSError("it has become shorter")
                done += read
        finally:
            os.close(descriptor)

    def read(self) -> Tensor:
        """Return the tensor in memory of its own. Raises LoadFailed."""
        return self.shaped(self.read_into(torch.empty(self.nbytes, dtype=torch.uint8)))


def read_entries(folder: Path) -> dict[str, Entry]:
    """Return the tensors of a folder by name, in the order in which a loader gives them.

    Raises:
        LoadFailed: a header cannot be read, or has a dtype that torch has not.
    """
    found: dict[str, Entry] = {}
    try:
        for file in shard_names(folder):
            found |= {entry.name: entry for entry in _entries(folder / file)}
    except LoadFailed:
        raise
    except Exception as error:
        raise LoadFailed(f"{folder} cannot be read: {error_text(error)}") from error
    if not found:
        raise LoadFailed(f"{folder} has no safetensors files")
    return found


def _entries(file: Path) -> Iterator[Entry]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        content = json.loads(stream.read(length))
    content.pop("__metadata__", None)
    at = {name: entry["data_offsets"] for name, entry in content.items()}
    for name in sorted(content, key=lambda name: (at[name], name)):
        dtype = content[name]["dtype"]
        if dtype not in _DTYPES:
            raise LoadFailed(f"`{name}` in {file.name} has dtype {dtype}, which torch has not")
        begin, end = (8 + length + offset for offset in at[name])
        yield Entry(name, file, _DTYPES[dtype], tuple(content[name]["shape"]), begin, end)
