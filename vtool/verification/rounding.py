"""Tolerances for rounding: measured, not chosen.

A computation is repeated with every weight moved by one rounding, up or down at random, as TTrace
(arXiv 2506.09280) does with inputs; the change of its result says how much a rounding counts in it.
Two ways to compute the same thing round their sums in another order: of n terms, the error grows as
√n (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019). So √n times
the larger of two such changes is allowed, where n is the longest sum in the model.
"""

import copy
from collections.abc import Callable, Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from vtool.verification.proofs.proof import Difference

ROUNDING = torch.finfo(torch.float32).eps / 2
"""The largest relative error of one rounding in float32, in which proofs compute."""
_DRAWS = 2


def move_weights(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model, each of its weights moved by one rounding."""
    random = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            draws = torch.randint(0, 2, parameter.shape, generator=random, dtype=torch.int8)
            signs = draws.to(parameter.dtype) * 2 - 1
            parameter.mul_(1 + signs * (2 * ROUNDING))  # 1 − 2u and 1 + 2u are floats themselves
    return moved


def longest_sum(model: nn.Module, tokens: int) -> int:
    """Return the most numbers that are added to one: a row of a weight, or a step's tokens."""
    return max(
        tokens, *(parameter.shape[-1] for parameter in model.parameters() if parameter.dim() > 1)
    )


def tolerances(
    model: nn.Module,
    tokens: int,
    compute: Callable[[nn.Module], Mapping[str, Tensor]],
    here: Mapping[str, Tensor],
) -> dict[str, float]:
    """Return for each tensor how far another way to compute it may be from it, as a norm.

    Args:
        compute: gives the tensors of a model, by name.
        here: what it gives for `model`.
    """
    allowed = {name: ROUNDING * float(tensor.double().norm()) for name, tensor in here.items()}
    for draw in range(_DRAWS):
        there = compute(move_weights(model, draw))
        for name, tensor in here.items():
            allowed[name] = max(
                allowed[name], float((there[name].double() - tensor.double()).norm())
            )
    root = sqrt(longest_sum(model, tokens))
    return {name: root * value for name, value in allowed.items()}


def tensor_distances(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    allowed: Mapping[str, float],
    case: str = "",
) -> list[Difference]:
    """Return the distance of each tensor from its counterpart, relative to that one's norm.

    A tensor that is missing on one side counts as zeros.

    Args:
        allowed: by name, the norm that rounding may have.
        case: is added to the names.
    """
    found = []
    for name in {**theirs, **ours}:
        tensors = [side[name].double() for side in (ours, theirs) if name in side]
        apart = float((tensors[0] - tensors[1] if len(tensors) == 2 else tensors[0]).norm())
        scale = (float(theirs[name].double().norm()) if name in theirs else 0.0) or 1.0
        where = f"{name} ({case})" if case else name
        found.append(Difference(where, apart / scale, allowed.get(name, 0.0) / scale))
    return found
