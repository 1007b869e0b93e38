"""How much rounding alone may change a number: measured, not chosen.

The same computation is repeated with every weight moved by one rounding, up or down at random, as
TTrace (arXiv 2506.09280) does with inputs; by how much its result moves then says how much a
rounding counts in it. Two ways to compute the same thing round their sums in
another order: of n terms, the error grows as √n (Higham and Mary, "A new approach to probabilistic
rounding error analysis", 2019). So what is allowed is √n times the larger of two such moves, where
n is the longest sum in the model.
"""

import copy
from collections.abc import Callable, Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from vtool.verify.proofs.proof import Difference

ROUNDING = torch.finfo(torch.float32).eps / 2
"""The largest relative error of one rounding in float32, in which proofs compute."""
DRAWS = 2


def moved(model: nn.Module, draw: int) -> nn.Module:
    """A copy of a model, each of its weights moved by one rounding."""
    random = torch.Generator().manual_seed(draw)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            signs = (
                torch.randint(0, 2, parameter.shape, generator=random, dtype=torch.int8).to(
                    parameter.dtype
                )
                * 2
                - 1
            )
            parameter.mul_(1 + signs * (2 * ROUNDING))  # 1 − 2u and 1 + 2u are numbers of their own
    return other


def longest_sum(model: nn.Module, tokens: int) -> int:
    """The most numbers that are added up to one:

    of a row of a weight, or of the tokens of a step.
    """
    return max(
        tokens, *(parameter.shape[-1] for parameter in model.parameters() if parameter.dim() > 1)
    )


def tolerances(
    model: nn.Module,
    tokens: int,
    compute: Callable[[nn.Module], Mapping[str, Tensor]],
    here: Mapping[str, Tensor],
) -> dict[str, float]:
    """For each tensor that `compute` gives, how far another way to the same may be from it, in its
    norm. `here`: what it gives now.
    """
    allowed = {name: ROUNDING * float(tensor.double().norm()) for name, tensor in here.items()}
    for draw in range(DRAWS):
        there = compute(moved(model, draw))
        for name, tensor in here.items():
            allowed[name] = max(
                allowed[name], float((there[name].double() - tensor.double()).norm())
            )
    root = sqrt(longest_sum(model, tokens))
    return {name: root * value for name, value in allowed.items()}


def differences(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    allowed: Mapping[str, float],
    case: str = "",
) -> list[Difference]:
    """Each tensor against its counterpart, as a part of that one's norm.

    One that is missing on a side is taken for zeros.
    """
    found = []
    for name in {**theirs, **ours}:
        one, other = ours.get(name), theirs.get(name)
        size = 0.0 if other is None else float(other.double().norm())
        if one is None or other is None:
            apart = float((one if other is None else other).double().norm())  # type: ignore[union-attr]
        else:
            apart = float((one.double() - other.double()).norm())
        scale = size or 1.0
        found.append(
            Difference(
                f"{name}{f' ({case})' if case else ''}",
                apart / scale,
                allowed.get(name, 0.0) / scale,
            )
        )
    return found
