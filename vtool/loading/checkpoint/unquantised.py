"""Finds folders whose config says that they are quantized, and whose weights are not."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header
from vtool.loading.checkpoint.scales import PACKED, SCALED
from vtool.model_folder import MODEL_CONFIG

_ALWAYS = ("gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4")
"""Methods whose loaders take nothing but quantized weights where the config names them.

bitsandbytes and others quantize plain weights as they are loaded.
"""
_ENDINGS = (*PACKED, "_scale", "_scale_inv", ".scales", ".weight_shape", "_blocks")
_DTYPES = (*SCALED, "U8", "F4", "F8_E8M0")


def unquantised(
    folder: Path, headers: Mapping[str, Header], config: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Yield a finding where a quantization config comes with plain weights alone."""
    named = config.get("quantization_config")
    method = named.get("quant_method") if isinstance(named, Mapping) else None
    if method not in _ALWAYS or not isinstance(named, Mapping):
        return
    if method == "compressed-tensors" and not named.get("config_groups"):
        return  # of sparsity alone
    tensors = [tensor for header in headers.values() for tensor in header.tensors]
    weights = [one for one in tensors if one.name.endswith(".weight") and len(one.shape) > 1]
    if not weights or any(one.dtype in _DTYPES or one.name.endswith(_ENDINGS) for one in tensors):
        return
    yield about_file(
        folder / MODEL_CONFIG,
        "missing-scale",
        f"config.json says `quant_method` {method}, and none of the {len(tensors):,} tensors is"
        f" quantized: {weights[0].name} is {weights[0].dtype}",
        "take quantization_config out of config.json, or quantize the weights",
        expected=f"weights in {method}",
        seen=f"{weights[0].dtype} without scales",
    )
