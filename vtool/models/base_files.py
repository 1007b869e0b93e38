"""The files of the weights under an adapter: an adapter is a difference, and fits these alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from vtool.contents import open_regular
from vtool.diagnostics import Diagnostic, Findings
from vtool.model_folder import MODEL_CONFIG

_BLOCK = 2**24
BASE_RECORD = "base.json"
"""The digests of a run's base, in its folder."""


def file_digest(file: Path) -> dict[str, Any]:
    """Return the size and the XXH3 of a file.

    Raises:
        Findings: `model-does-not-load`, where it cannot be read.
    """
    total, size = xxhash.xxh3_128(), 0
    for block in model_file_blocks(file):
        total.update(block)
        size += len(block)
    return {"bytes": size, "xxh3": total.hexdigest()}


def model_file_blocks(file: Path) -> Iterator[bytes]:
    """Yield the content of a file.

    Raises:
        Findings: `model-does-not-load`, where it cannot be read.
    """
    try:
        with open_regular(file) as opened:
            while block := opened.read(_BLOCK):
                yield block
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}"
        raise Findings(Diagnostic("model-does-not-load", message), fatal=True) from error


def file_digests(base: Path) -> dict[str, Any]:
    """Return the size and the XXH3 of each file that makes the model.

    transformers reads .bin files where there are no others.
    """
    weights = sorted(base.glob("*.safetensors")) or sorted(base.glob("pytorch_model*.bin"))
    return {
        file.name: file_digest(file) for file in (*weights, base / MODEL_CONFIG) if file.exists()
    }


def check_same_weights(
    whose: Path, base: Path, written: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Hold the digests of weights against those that a run began with.

    Raises:
        Findings: `base-changed`.
    """
    different = sorted(
        name for name in written.keys() | found.keys() if written.get(name) != found.get(name)
    )
    if different:
        message = (
            f"{base} is not what {whose} began with: {', '.join(different)}"
            if found
            else f"{base}, which {whose} began with, is not there"
        )
        raise Findings(Diagnostic("base-changed", message, parameter="model.path"))
