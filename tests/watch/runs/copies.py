"""An optimizer with one flat copy of all weights, as ZeRO has: what a loop does around it."""

from typing import Any


def flat_copy(model: Any, optimizer: Any) -> None:
    """Let the optimizer have one flat copy of all weights, as ZeRO does."""
    import torch

    group = optimizer.param_groups[0]
    whole = torch.cat([p.detach().flatten() for p in group["params"]])
    copied = torch.nn.Parameter(whole)
    model.copied = [group["params"], copied]  # in a list, a module does not take it as its own
    group["params"] = [copied]


def gradients_to_copy(model: Any, step: int, rank: int) -> None:
    import torch

    own, copied = model.copied
    copied.grad = torch.cat([p.grad.flatten() for p in own])
    for parameter in own:
        parameter.grad = None


def weights_from_copy(model: Any, optimizer: Any, step: int) -> None:
    import torch

    own, copied = model.copied
    with torch.no_grad():
        for parameter, part in zip(own, copied.split([p.numel() for p in own]), strict=True):
            parameter.copy_(part.view_as(parameter))
