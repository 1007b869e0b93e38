"""Quantized twins: fp8 weights and scales for linear layers, and other tensors as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import NotRun
from .state import State

QUANTIZATION_CONFIG: Mapping[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", r"re:.*\bgate$", r"re:.*router.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
"""fp8 with a scale for each row, as compressed-tensors writes it (llm-compressor's FP8_DYNAMIC).

Routers stay as they are, as there.
"""


def quantize_checkpoint(
    checkpoint: Mapping[str, Tensor], into: Mapping[str, Sequence[str]], parameters: State
) -> dict[str, Tensor]:
    """Return the checkpoint with fp8 weights, each followed by its scale, where the class has them.

    Args:
        into: for each parameter, the checkpoint's tensors that go into it when nothing is
            quantized.
        parameters: those of the class when it is made for quantized weights.

    Raises:
        NotRun: nothing can be quantized, or a tensor of a quantized parameter is no `X.weight` of
            two dimensions.
    """
    wanted = {
        tensor
        for parameter in quantized_parameters(parameters)
        for tensor in into.get(parameter, ())
    }
    if not wanted:
        raise NotRun("no linear layer of it takes quantized weights")
    generator = torch.Generator().manual_seed(3)
    made: dict[str, Tensor] = {}
    for name, tensor in checkpoint.items():
        made[name] = tensor
        if name in wanted:
            if tensor.dim() != 2 or not name.endswith(".weight"):
                raise NotRun(f"compressed-tensors has no form for `{name}`, {list(tensor.shape)}")
            made[name] = (torch.randn(tensor.shape, generator=generator) * 0.5).to(
                torch.float8_e4m3fn
            )
            made[f"{name}_scale"] = torch.rand(tensor.shape[0], 1, generator=generator) + 0.01
    return made


def quantized_parameters(parameters: State) -> list[str]:
    """Return the names of parameters of one byte an element that have a scale beside them."""
    return [
        name
        for name, tensor in parameters.items()
        if tensor.element_size() == 1 and f"{name}_scale" in parameters
    ]
