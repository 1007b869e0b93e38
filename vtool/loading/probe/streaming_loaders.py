"""Streaming loaders that people use, on a file of this machine."""

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .ranks import RANKS, leave_groups, run_on_ranks
from .subject import NamedTensor


def safetensors_mmap(file: Path) -> Iterator[NamedTensor]:
    """Yield with safetensors, which maps the file into memory."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118
            yield name, opened.get_tensor(name)


def runai(file: Path, *, distributed: bool = False) -> Iterator[NamedTensor]:
    """Yield with Run:ai's streamer, in a buffer no larger than the largest tensor needs.

    Without copies, where this version can leave them out.

    Args:
        distributed: each rank of torch's process group reads a part of the file, and the ranks pass
            it on to each other.
    """
    use_small_buffer(file)
    # Ranks pass tensors on through a buffer of a gigabyte, which a real checkpoint fills again and
    # again, and a tiny one never.
    os.environ.update(RUNAI_STREAMER_DIST="1", RUNAI_STREAMER_DIST_BUFFER_MIN_BYTESIZE="0")
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        known = inspect.signature(streamer.stream_files).parameters
        wanted: dict[str, object] = {"owned": False, "device": "cpu"}
        given = {name: value for name, value in wanted.items() if name in known}
        if distributed:
            given["is_distributed"] = True
        streamer.stream_files([str(file)], **given)
        yield from streamer.get_tensors()


def use_small_buffer(file: Path) -> None:
    """Give Run:ai's streamer a buffer no larger than the largest tensor of a file needs.

    A byte more for each tensor, and the whole of a small file stays in it: nothing is overwritten.
    """
    size = max(_sizes(file))
    os.environ.update(RUNAI_STREAMER_MEMORY_LIMIT=str(size), RUNAI_STREAMER_CONCURRENCY="1")


def runai_version() -> str | None:
    """Return the version of Run:ai's streamer; None where it is not installed."""
    try:
        return version("runai-model-streamer")
    except PackageNotFoundError:
        return None


def fastsafetensors(file: Path) -> Iterator[NamedTensor]:
    """Yield with fastsafetensors, without GPU Direct Storage."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
    loader.add_filenames({0: [str(file)]})
    buffers = loader.copy_files_to_device()
    try:
        for name in loader.get_keys():
            yield name, buffers.get_tensor(name)
    finally:
        buffers.close()
        loader.close()


STREAMING_SOURCES: Mapping[str, Callable[[Path], Iterator[NamedTensor]]] = {
    "safetensors": safetensors_mmap,
    "runai": runai,
    "fastsafetensors": fastsafetensors,
}
RUNAI_SOURCES = ("runai", "runai_distributed")
RUNAI_ON_RANKS = RUNAI_SOURCES[1]
"""The source that needs several processes: `runai_on_ranks`."""


def runai_on_ranks(
    load: Callable[[Iterator[NamedTensor]], list[str]], file: Path
) -> list[list[str]] | str:
    """Load from Run:ai's streamer on two ranks over gloo, which share the reading.

    Args:
        load: loads a new object from an iterator and returns what is wrong with it.
        file: in a folder of its own, where the ranks meet, and leave their results.

    Returns:
        For each rank what `load` returns; or why it could not.

    Raises:
        ImportError: the streamer is not installed.
    """
    # imported here too, so that it raises in this process
    from runai_model_streamer import SafetensorsStreamer  # noqa: F401

    def on_rank(rank: int) -> list[str]:
        leave_groups()
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{file.with_name('meeting')}",
            rank=rank,
            world_size=RANKS,
        )
        return load(runai(file, distributed=True))

    return run_on_ranks(on_rank, file.with_name("ranks"))


def _sizes(file: Path) -> list[int]:
    """Return the size in bytes of each tensor of a safetensors file."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return [
        entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in header.items()
        if name != "__metadata__"
    ]
