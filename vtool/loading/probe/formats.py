"""Formats of quantized checkpoints, and the one registry of them.

Each has the `quantization_config` that names it, and the tensors that a linear layer of O output
and I input channels has in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GROUP = 32
"""Input channels that have a scale in common, where scales are by group."""
_BLOCK = (16, 128)
"""Output and input channels of a block: published checkpoints have 128 of both, and tiny layers
fewer outputs.
"""
_PACKED = 8
"""Numbers of four bits in one of int32."""
IGNORE = ("lm_head", r"re:.*\bgate$", r"re:.*router.*")
"""Layers that compressed-tensors' tools leave as they are."""


@dataclass(frozen=True, slots=True)
class LayerTensor:
    """A tensor that a quantized linear layer has, in place of its weight or in addition to it."""

    name: str
    """The end of its name, behind the layer's and a dot."""
    dtype: torch.dtype
    shape: Callable[[int, int], tuple[int, ...]]
    """The shape, of O and I."""
    axis: int = 0
    """The dimension along which output channels run."""
    channels: int | None = 1
    """The output channels of one index on that dimension; None where all of it is of all."""
    of_input: bool = False
    """True if layers that share their input have the same: it says nothing of the weight."""
    needed: bool = True
    """False if a class may do without a parameter for it."""
    values: Callable[[int, int], Tensor] | None = None
    """The values, of O and I, where they cannot be any."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format of quantized weights."""

    name: str
    """The name, as in the setting `formats`."""
    config: Mapping[str, Any]
    """The `quantization_config` of config.json."""
    parts: tuple[LayerTensor, ...]
    """The weight first; none where a framework does not give its tensors to the class."""
    multiples: tuple[int, int] = (1, 1)
    """Numbers that O and I have to be multiples of."""
    left_out: str = "ignore"
    """The key of the config, where it is there, for layers of other sizes, which stay plain."""
    relevant: str | None = None
    """A text in the file of those classes that are asked without the setting."""
    from_headers: bool = False
    """True if vLLM reads from the files' headers which layers are quantized."""


def _compressed(kind: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> Any:
    """Return a `quantization_config` of compressed-tensors, for all linear layers."""
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": list(IGNORE),
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"symmetric": True, "dynamic": False, **weights},
                "input_activations": inputs and {"symmetric": True, **inputs},
            }
        },
    }


def _groups(outputs: int, inputs: int) -> tuple[int, int]:
    return outputs, inputs // GROUP


def _blocks(outputs: int, inputs: int) -> tuple[int, int]:
    return -(-outputs // _BLOCK[0]), -(-inputs // _BLOCK[1])


_FLOAT8 = {"num_bits": 8, "type": "float"}
_INT8 = {"num_bits": 8, "type": "int"}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
_BY_ROW = LayerTensor("weight_scale", torch.float32, lambda outputs, inputs: (outputs, 1))
_PACKED_ROWS = (
    LayerTensor("weight_packed", torch.int32, lambda outputs, inputs: (outputs, inputs // _PACKED)),
    LayerTensor("weight_scale", torch.bfloat16, _groups),
    LayerTensor(
        "weight_shape",
        torch.int64,
        lambda outputs, inputs: (2,),
        channels=None,
        needed=False,
        values=lambda outputs, inputs: torch.tensor([outputs, inputs]),
    ),
)
_COLUMNS = (
    LayerTensor(
        "qzeros",
        torch.int32,
        lambda outputs, inputs: (inputs // GROUP, outputs // _PACKED),
        axis=1,
        channels=_PACKED,
    ),
    LayerTensor(
        "scales", torch.bfloat16, lambda outputs, inputs: (inputs // GROUP, outputs), axis=1
    ),
)
WEIGHT_FORMATS: tuple[WeightFormat, ...] = (
    WeightFormat(
        # a scale for each row, as llm-compressor's FP8_DYNAMIC
        "fp8-channel",
        _compressed(
            "float-quantized",
            {**_FLOAT8, "strategy": "channel"},
            {**_FLOAT8, "strategy": "token", "dynamic": True},
        ),
        (
            LayerTensor("weight", torch.float8_e4m3fn, lambda outputs, inputs: (outputs, inputs)),
            _BY_ROW,
        ),
    ),
    WeightFormat(
        # one scale for a weight, and one for its input, as llm-compressor's FP8
        "fp8-tensor",
        _compressed(
            "float-quantized",
            {**_FLOAT8, "strategy": "tensor"},
            {**_FLOAT8, "strategy": "tensor", "dynamic": False},
        ),
        (
            LayerTensor("weight", torch.float8_e4m3fn, lambda outputs, inputs: (outputs, inputs)),
            LayerTensor("weight_scale", torch.float32, lambda outputs, inputs: (1,), channels=None),
            LayerTensor(
                "input_scale",
                torch.float32,
                lambda outputs, inputs: (1,),
                channels=None,
                of_input=True,
            ),
        ),
    ),
    WeightFormat(
        # as DeepSeek-V3
        "fp8-block",
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(_BLOCK),
            "modules_to_not_convert": ["lm_head"],
        },
        (
            LayerTensor("weight", torch.float8_e4m3fn, lambda outputs, inputs: (outputs, inputs)),
            LayerTensor("weight_scale_inv", torch.float32, _blocks, channels=_BLOCK[0]),
        ),
        multiples=(_BLOCK[0], 1),
        left_out="modules_to_not_convert",
        relevant="weight_scale_inv",
    ),
    WeightFormat(
        # as llm-compressor's W8A8
        "int8-channel",
        _compressed(
            "int-quantized",
            {**_INT8, "strategy": "channel"},
            {**_INT8, "strategy": "token", "dynamic": True},
        ),
        (LayerTensor("weight", torch.int8, lambda outputs, inputs: (outputs, inputs)), _BY_ROW),
    ),
    WeightFormat(
        # as llm-compressor's W4A16
        "int4",
        _compressed("pack-quantized", _INT4, None),
        _PACKED_ROWS,
        multiples=(_PACKED, GROUP),
    ),
    WeightFormat(
        # as llm-compressor's W4A16_ASYM
        "int4-asymmetric",
        _compressed("pack-quantized", {**_INT4, "symmetric": False}, None),
        (
            *_PACKED_ROWS,
            LayerTensor(
                "weight_zero_point",
                torch.int32,
                lambda outputs, inputs: (outputs // _PACKED, inputs // GROUP),
                channels=_PACKED,
            ),
        ),
        multiples=(_PACKED, GROUP),
    ),
    WeightFormat(
        "gptq",
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "sym": True,
            "desc_act": False,
            "lm_head": False,
        },
        (
            LayerTensor(
                "qweight",
                torch.int32,
                lambda outputs, inputs: (inputs // _PACKED, outputs),
                axis=1,
            ),
            *_COLUMNS,
            LayerTensor(
                "g_idx",
                torch.int32,
                lambda outputs, inputs: (inputs,),
                channels=None,
                of_input=True,
                needed=False,
                values=lambda outputs, inputs: (torch.arange(inputs) // GROUP).int(),
            ),
        ),
        multiples=(_PACKED, GROUP),
        from_headers=True,
    ),
    WeightFormat(
        "awq",
        {
            "quant_method": "awq",
            "version": "gemm",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "modules_to_not_convert": None,
        },
        (
            LayerTensor(
                "qweight",
                torch.int32,
                lambda outputs, inputs: (inputs, outputs // _PACKED),
                axis=1,
                channels=_PACKED,
            ),
            *_COLUMNS,
        ),
        multiples=(_PACKED, GROUP),
        from_headers=True,
    ),
    WeightFormat(
        # its tensors are unpacked by vLLM's own loader, and no class is given them
        "bitsandbytes",
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": "bfloat16",
        },
        (),
    ),
)
"""Every format, in the order in which they are tried."""
FORMATS_BY_NAME: Mapping[str, WeightFormat] = {one.name: one for one in WEIGHT_FORMATS}
DEFAULT = "fp8-channel"
"""The format that is asked of every class."""
