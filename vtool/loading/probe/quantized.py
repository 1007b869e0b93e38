"""Quantized twins: the tensors of a format for linear layers, and all other tensors as they are."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import NotRun
from .formats import LayerTensor, WeightFormat
from .state import NamedState

_SEED = 3
_SMALLEST, _LARGEST = 0x3880, 0x4700
"""The bits of the bfloat16s that scales are drawn from, from 2^-14 to 2^15: float16 has them too.

They differ in their exponents too, so that few of them are alike.
"""


@dataclass(frozen=True)
class Quantized:
    """A checkpoint in a format."""

    tensors: Mapping[str, Tensor]
    layers: Mapping[str, tuple[int, int]]
    """The output and input channels of each layer that is quantized, by its name there."""


def quantize_checkpoint(
    checkpoint: Mapping[str, Tensor],
    form: WeightFormat,
    into: Mapping[str, Sequence[str]],
    parameters: NamedState,
    left_out: Collection[str] = (),
) -> Quantized:
    """Return the checkpoint in a format, where the class has quantized weights.

    Args:
        into: for each parameter, the checkpoint's tensors that go into it when nothing is
            quantized.
        parameters: those of the class when it is made for quantized weights.
        left_out: tensors that stay as they are.

    Raises:
        NotRun: nothing can be quantized, or a tensor of a quantized parameter is no `X.weight` of
            two dimensions that the format can have.
    """
    wanted = {
        tensor
        for stem in quantized_stems(parameters, form)
        for tensor in into.get(f"{stem}weight", ())
        if not tensor.endswith(".bias")
    } - set(left_out)
    if not wanted:
        raise NotRun("no linear layer of it takes quantized weights")
    generator = torch.Generator().manual_seed(_SEED)
    made: dict[str, Tensor] = {}
    layers: dict[str, tuple[int, int]] = {}
    for name, tensor in checkpoint.items():
        if name not in wanted:
            made[name] = tensor
            continue
        layer = name.removesuffix(".weight")
        if tensor.dim() != 2 or layer == name or not _fits(tensor, form):
            raise NotRun(f"{form.name} has no form for `{name}`, {list(tensor.shape)}")
        outputs, inputs = tensor.shape
        layers[layer] = outputs, inputs
        for part in form.parts:
            made[f"{layer}.{part.name}"] = _values(part, layer, outputs, inputs, generator)
    return Quantized(made, layers)


def quantized_stems(parameters: NamedState, form: WeightFormat) -> list[str]:
    """Return the names of weights in a format, without what the format calls a weight.

    Such as `model.layers.0.mlp.down_proj.`, or `….experts.w13_` of experts.
    """
    if not form.parts:
        return []
    weight = form.parts[0]
    return [
        name.removesuffix(weight.name)
        for name, tensor in parameters.items()
        if name.endswith(weight.name) and tensor.dtype == weight.dtype
    ]


def unfit(
    checkpoint: Mapping[str, Tensor], form: WeightFormat, into: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the weights of layers whose sizes a format cannot have, and what is fused with them.

    Quantizers leave them as they are.
    """
    layers = [
        [tensor for tensor in of if tensor.endswith(".weight") and checkpoint[tensor].dim() == 2]
        for of in into.values()
    ]
    return list(
        dict.fromkeys(
            tensor
            for of in layers
            if not all(_fits(checkpoint[tensor], form) for tensor in of)
            for tensor in of
        )
    )


def _fits(tensor: Tensor, form: WeightFormat) -> bool:
    return not any(
        size % multiple for size, multiple in zip(tensor.shape, form.multiples, strict=True)
    )


def _values(
    part: LayerTensor, layer: str, outputs: int, inputs: int, generator: torch.Generator
) -> Tensor:
    """Return the values of a part: others for each layer, or for each module that layers are in."""
    if part.values is not None:
        return part.values(outputs, inputs)
    if part.of_input:
        of_module = f"{layer.rpartition('.')[0]} {inputs}"
        generator = torch.Generator().manual_seed(zlib.crc32(of_module.encode()))
    shape = part.shape(outputs, inputs)
    if part.dtype == torch.float8_e4m3fn:
        return (torch.randn(shape, generator=generator) * 0.5).to(part.dtype)
    if part.dtype == torch.bfloat16:
        bits = torch.randint(_SMALLEST, _LARGEST, shape, generator=generator)
        return bits.to(torch.int16).view(torch.bfloat16)
    if part.dtype.is_floating_point:
        return torch.rand(shape, generator=generator) + 0.01
    range_of = torch.iinfo(part.dtype)
    values = torch.randint(range_of.min + 1, range_of.max, shape, generator=generator)
    return values.to(part.dtype)
