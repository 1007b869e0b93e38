"""Loaders that people use, on a file of this machine."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from .ranks import RANKS, leave_groups, on_ranks
from .subject import Named


def safetensors_mmap(file: Path) -> Iterator[Named]:
    """safetensors, with the file mapped into memory."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118
            yield name, opened.get_tensor(name)


def runai(file: Path, *, distributed: bool = False) -> Iterator[Named]:
    """Run:ai's streamer with as little memory as the largest tensor needs, and without copies where
    it can be told so.

    Args:
        distributed: each rank of torch's process group reads a part of the file, and the ranks pass
            it on to each other.
    """
    import inspect

    size = max(_sizes(file)) + (1 << 16)
    os.environ.update(RUNAI_STREAMER_MEMORY_LIMIT=str(size), RUNAI_STREAMER_CONCURRENCY="1")
    # Ranks pass tensors on through a buffer of a gigabyte, which a real checkpoint fills again and
    # again, and a tiny one never.
    os.environ.update(RUNAI_STREAMER_DIST="1", RUNAI_STREAMER_DIST_BUFFER_MIN_BYTESIZE="0")
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        more: dict[str, object] = (
            {"owned": False}
            if "owned" in inspect.signature(streamer.stream_files).parameters
            else {}
        )
        if "device" in inspect.signature(streamer.stream_files).parameters:
            more["device"] = "cpu"
        if distributed:
            more["is_distributed"] = True
        streamer.stream_files([str(file)], **more)
        yield from streamer.get_tensors()


def fastsafetensors(file: Path) -> Iterator[Named]:
    """fastsafetensors without GPU Direct Storage."""
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


SOURCES: Mapping[str, Callable[[Path], Iterator[Named]]] = {
    "safetensors": safetensors_mmap,
    "runai": runai,
    "fastsafetensors": fastsafetensors,
}
ON_RANKS = "runai_distributed"
"""A source that is no iterator of one process."""


def runai_on_ranks(
    load: Callable[[Iterator[Named]], list[str]], file: Path, folder: Path
) -> list[list[str]] | str:
    """Run:ai's streamer on two ranks over gloo, which share the reading; for each rank what `load`
    makes of it, or why it could not.

    Args:
        load: loads a new object from an iterator and says what is wrong with it.
        folder: where the ranks meet, and leave what they have to say.
    """
    # an ImportError is told here, not on a rank
    from runai_model_streamer import SafetensorsStreamer  # noqa: F401

    def on_rank(rank: int) -> list[str]:
        leave_groups()
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
        )
        return load(runai(file, distributed=True))

    return on_ranks(on_rank, folder / "ranks")


def write(checkpoint: Mapping[str, Tensor], file: Path) -> None:
    """The checkpoint as a file."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in checkpoint.items()}, file)


def _sizes(file: Path) -> list[int]:
    import json

    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return [
        entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in header.items()
        if name != "__metadata__"
    ]
