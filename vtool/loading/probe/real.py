"""Loaders that people use, on a file of this machine."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from .subject import Named


def safetensors_mmap(file: Path) -> Iterator[Named]:
    """safetensors, with the file mapped into memory."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118
            yield name, opened.get_tensor(name)


def runai(file: Path) -> Iterator[Named]:
    """Run:ai's streamer with as little memory as the largest tensor needs, and without copies where it can be told so."""
    import inspect

    size = max(_sizes(file)) + (1 << 16)
    os.environ.update(RUNAI_STREAMER_MEMORY_LIMIT=str(size), RUNAI_STREAMER_CONCURRENCY="1")
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        more: dict[str, object] = {"owned": False} if "owned" in inspect.signature(streamer.stream_files).parameters else {}
        if "device" in inspect.signature(streamer.stream_files).parameters:
            more["device"] = "cpu"
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


def write(checkpoint: Mapping[str, Tensor], file: Path) -> None:
    """The checkpoint as a file."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in checkpoint.items()}, file)


def _sizes(file: Path) -> list[int]:
    import json

    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return [entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"]
