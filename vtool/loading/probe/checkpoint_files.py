"""Reads and writes checkpoints as safetensors files."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from .errors import LoadFailed, error_text


def shard_names(folder: Path) -> list[str]:
    """Return the names of a folder's files: those of its index, where it has one, else all."""
    index = folder / "model.safetensors.index.json"
    names = (
        json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        if index.exists()
        else [path.name for path in folder.glob("*.safetensors")]
    )
    return sorted(set(names))


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a folder's safetensors files: those of its index, where it has one, else all.

    Returns:
        The tensors, in the order of the files; and each tensor's file, where there are several.

    Raises:
        LoadFailed: they cannot be read, or there are none.
    """
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    try:
        for file in shard_names(folder):
            found = load_file(folder / file)
            tensors |= found
            files |= dict.fromkeys(found, file)
    except Exception as error:
        raise LoadFailed(f"{folder} cannot be read: {error_text(error)}") from error
    if not tensors:
        raise LoadFailed(f"{folder} has no safetensors files")
    return tensors, files if len(set(files.values())) > 1 else {}


def write_checkpoint(checkpoint: Mapping[str, Tensor], folder: Path) -> Path:
    """Write `model.safetensors` into a folder, as transformers does; return its path."""
    from safetensors.torch import save_file

    file = folder / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return file


@contextmanager
def temporary_checkpoint(checkpoint: Mapping[str, Tensor]) -> Iterator[Path]:
    """Yield the path of a `model.safetensors` in a folder that goes away at the end."""
    with TemporaryDirectory(prefix="vtool-") as folder:
        yield write_checkpoint(checkpoint, Path(folder))
