"""Checkpoint folders, healthy ones and the bytes to break them with."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Entry = tuple[str, tuple[int, ...], bytes]
"""dtype, shape, bytes."""


def f32(*shape: int, seed: int = 0) -> Entry:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return "F32", shape, values.tobytes()


def of(dtype: str, values: NDArray[np.generic]) -> Entry:
    return dtype, values.shape, values.tobytes()


def encode(tensors: Mapping[str, Entry], padding: int = 0) -> bytes:
    """A safetensors file, by the format's description and not by anybody's library;

    `padding` spaces after the header.
    """
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    return raw(
        json.dumps(header) + " " * padding, b"".join(data for _, _, data in tensors.values())
    )


def raw(header: str | bytes, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text)) + text + data


def folder(path: Path, **files: Mapping[str, Entry]) -> Path:
    """A folder with config.json and `<name>.safetensors` for each keyword."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    for name, tensors in files.items():
        (path / f"{name}.safetensors").write_bytes(encode(tensors))
    return path


def index(path: Path, weight_map: Mapping[str, str], total_size: int | None = None) -> Path:
    document = {
        "metadata": {} if total_size is None else {"total_size": total_size},
        "weight_map": weight_map,
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(document))
    return path


ONE, TWO = "model-00001-of-00002", "model-00002-of-00002"


def sharded(path: Path) -> Path:
    """Two shards and their index: `a` and `b` in the first, `c` in the second."""
    folder(path, **{ONE: {"a": f32(2, 3), "b": f32(4)}, TWO: {"c": f32(3, 4)}})
    return index(
        path,
        {"a": f"{ONE}.safetensors", "b": f"{ONE}.safetensors", "c": f"{TWO}.safetensors"},
        4 * 22,
    )
