"""A base in NF4 as plain layers, unpacked by the numbers of the paper, for the reference."""

import torch
from torch import Tensor, nn

from vtool.models.nf4 import WEIGHTS_PER_SCALE, Nf4Linear

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The 16 numbers of NF4 (arXiv 2305.14314, appendix E)."""


def unpack_base(model: nn.Module) -> nn.Module:
    """Put plain layers of the same weights in the place of packed ones, in place.

    Nothing of what computes with packed weights in training is used.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Nf4Linear):
            plain = nn.Linear(layer.in_features, layer.out_features, device="meta")
            plain.weight = nn.Parameter(unpack(layer).float(), requires_grad=False)
            plain.bias = layer.bias
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, plain)
    return model


def unpack(layer: Nf4Linear) -> Tensor:
    """Return a packed weight, in float64.

    Of each byte the upper four bits are the first number; so many have one scale.
    """
    assert layer.absmax is not None, "its weight is there"
    both = layer.weight.reshape(-1).long()
    codes = torch.stack((both >> 4, both & 15), dim=1).reshape(-1)
    numbers = torch.tensor(NF4, dtype=torch.float64)[codes]
    scales = layer.absmax.double().repeat_interleave(WEIGHTS_PER_SCALE)
    count = layer.in_features * layer.out_features
    return (numbers[:count] * scales[:count]).reshape(layer.out_features, layer.in_features)
