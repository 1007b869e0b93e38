"""The tensor files of a checkpoint: each rank writes a share of whole tensors, and reads any.

As fairscale's and DCP's "owner" layouts do, but of whole tensors: each file is one that safetensors
opens by itself. A tensor is gathered on one rank, which writes it and lets it go.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vtool.contents import open_regular, read_small_json
from vtool.engines.ranks import Ranks

MANIFEST = "manifest.json"
TENSOR_KINDS = ("model", "optimizer")
FILE_BYTES = 2**30
"""Bytes of gathered tensors that a rank holds before it writes a file, and one tensor."""
_SHARD = re.compile(r"(model|optimizer)-([0-9]{5})-of-([0-9]{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of tensors that a rank has written."""

    kind: str
    name: str
    bytes: int
    sha256: str
    tensors: tuple[str, ...]
    tensor_bytes: int
    """Bytes of the tensors alone, which an index of several files adds up."""


class Shares:
    """The shares of the ranks. Rank 0 has the first file; then the rank with the fewest bytes.

    An `Owner` of an engine's tensors: all ranks see the same ones in the same order, and so agree
    without communication. A small checkpoint, such as that of adapters, is one file of each kind.
    """

    def __init__(self, world: int) -> None:
        self._total = 0
        self._fewest = [(0, rank) for rank in range(1, world)]

    def __call__(self, size: int) -> int:
        """Return the rank that writes the next tensor."""
        before, self._total = self._total, self._total + size
        if self._total <= FILE_BYTES:
            return 0
        if before <= FILE_BYTES:
            heappush(self._fewest, (before, 0))
        own, owner = self._fewest[0]
        heapreplace(self._fewest, (own + size, owner))
        return owner


class ShareWriter:
    """Writes one rank's tensors into files of a folder, as they come."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder, self._rank = folder, ranks.rank
        # the tensors of a single process are there whole, and make one file
        self._limit = FILE_BYTES if ranks.world > 1 else None
        self.files: list[WrittenFile] = []
        self.error: Exception | None = None
        """The error that ended writing. Other ranks still wait for what this one gathers."""

    def write(self, kind: str, pairs: Iterable[tuple[str, Tensor]]) -> None:
        """Write the tensors of a kind; after an error only take them."""
        waiting: dict[str, Tensor] = {}
        size = 0
        for name, tensor in pairs:
            if self.error is not None:
                continue
            waiting[name] = tensor.detach().to("cpu").contiguous()
            size += tensor.nbytes
            if self._limit is not None and size >= self._limit:
                self._file(kind, waiting)
                waiting, size = {}, 0
        if waiting and self.error is None:
            self._file(kind, waiting)

    def _file(self, kind: str, tensors: dict[str, Tensor]) -> None:
        path = self._folder / f"{kind}-of-rank-{self._rank:05d}-{len(self.files):05d}.safetensors"
        try:
            save_file(tensors, path)
            flush(path)
            size, sha256 = path.stat().st_size, sha256_of(path)
        except (OSError, SafetensorError) as error:
            self.error = error
            return
        held = sum(tensor.nbytes for tensor in tensors.values())
        self.files.append(WrittenFile(kind, path.name, size, sha256, tuple(tensors), held))


def name_files(folder: Path, written: Sequence[WrittenFile]) -> dict[str, dict[str, int | str]]:
    """Give the files of all ranks their names, with an index where a kind has several.

    Returns:
        The size and digest of each, by its name.

    Raises:
        OSError: of a file that is not there, or not whole, on this rank.
    """
    found: dict[str, dict[str, int | str]] = {}
    for kind in TENSOR_KINDS:
        own = [file for file in written if file.kind == kind]
        weight_map: dict[str, str] = {}
        for number, file in enumerate(own, 1):
            if (size := (folder / file.name).stat().st_size) != file.bytes:
                raise OSError(f"{file.name} has {size} bytes here; {file.bytes} were written")
            name = shard_name(kind, number, len(own))
            os.rename(folder / file.name, folder / name)
            found[name] = {"bytes": file.bytes, "sha256": file.sha256}
            weight_map |= dict.fromkeys(file.tensors, name)
        if not own:  # an optimizer that has not updated anything
            empty = folder / f"{kind}.safetensors"
            save_file({}, empty)
            flush(empty)
            found[empty.name] = {"bytes": empty.stat().st_size, "sha256": sha256_of(empty)}
        if len(own) > 1:
            index = {"metadata": {"total_size": sum(file.tensor_bytes for file in own)}}
            text = json.dumps({**index, "weight_map": weight_map}, indent=1)
            (folder / f"{kind}.safetensors.index.json").write_text(text)
    return found


def tensor_files(manifest: Iterable[str], kind: str) -> list[str]:
    """Return the names in a manifest of the files of a kind, in order.

    Raises:
        LookupError: of those that it lacks.
    """
    names = set(manifest)
    shards = [match for name in names if (match := _SHARD.fullmatch(name)) and match[1] == kind]
    count = max((int(match[3]) for match in shards), default=1)
    whole = [shard_name(kind, number, count) for number in range(1, count + 1)]
    if missing := [name for name in whole if name not in names]:
        raise LookupError(", ".join(missing))
    return whole


def shard_name(kind: str, number: int, count: int) -> str:
    """Return the name of a file of tensors, from 1, as transformers has it."""
    several = f"-{number:05d}-of-{count:05d}" if count > 1 else ""
    return f"{kind}{several}.safetensors"


class SavedTensors(Mapping[str, Tensor]):
    """The tensors of files, by name: mapped into memory, and read where they are looked into."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Open the files.

        Raises:
            OSError, SafetensorError: of a file that is not one of tensors.
        """
        self._of: dict[str, Any] = {}
        for file in files:
            opened: Any = safe_open(file, "pt")
            self._of |= dict.fromkeys(opened.keys(), opened)

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._of[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def paths_of_tensors(checkpoint: Path, kind: str) -> list[Path]:
    """Return the files of a checkpoint that have the tensors of a kind."""
    manifest = read_small_json(checkpoint / MANIFEST)
    return [checkpoint / name for name in tensor_files(manifest, kind)]


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Flush a file or a folder to the disk: a rename can otherwise outlive the bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
