"""Findings about quantized weights without the scale that makes numbers of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header
from vtool.loading.words import listed

SCALED = ("F8_E4M3", "F8_E5M2", "I8")
PACKED = {".qweight": ".scales", ".weight_packed": ".weight_scale"}
"""Endings of packed weights (GPTQ and AWQ, compressed-tensors), and those of their scales."""


def missing_scales(
    folder: Path, headers: Mapping[str, Header], config: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Yield a finding for weights without a scale.

    It is an error where the config, or other weights of the folder, say that there are scales;
    float8 by a plain cast has none, and is a warning.
    """
    names = {tensor.name for header in headers.values() for tensor in header.tensors}
    scaled_modules = {name.rpartition(".")[0] for name in names if _is_of_weight(name)}
    without, scaled = [], 0
    for header in headers.values():
        for tensor in header.tensors:
            packed = next((end for end in PACKED if tensor.name.endswith(end)), None)
            if packed:
                has = tensor.name.removesuffix(packed) + PACKED[packed] in names
            elif tensor.dtype in SCALED and len(tensor.shape) > 1 and not _is_scale(tensor.name):
                module, _, leaf = tensor.name.rpartition(".")
                if leaf in ("weight", "_data"):
                    has = module in scaled_modules
                elif tensor.dtype != "I8":  # experts that are one tensor
                    has = any(name.startswith(f"{tensor.name}_scale") for name in names)
                else:
                    continue
            else:
                continue
            scaled += has
            if not has:
                without.append((packed is not None, tensor.name))
    if not without:
        return
    certain = scaled or "quantization_config" in config or any(packed for packed, _ in without)
    listed_names = tuple(name for _, name in without)
    message = (
        f"{len(without)} of {scaled + len(without)} quantized weights have no scale:"
        f" {listed(listed_names)}"
    )
    yield about_file(
        folder,
        "missing-scale",
        message,
        tensors=listed_names,
        severity="error" if certain else "warning",
    )


def _is_scale(name: str) -> bool:
    return "scale" in name.rpartition(".")[2]


def _is_of_weight(name: str) -> bool:
    """Return True for the scale of a weight, not of what goes in, comes out, or is cached."""
    leaf = name.rpartition(".")[2]
    others = ("input", "output", "act", "k_", "v_", "q_", "prob")
    return leaf in ("SCB", "absmax") or (_is_scale(name) and not leaf.startswith(others))
