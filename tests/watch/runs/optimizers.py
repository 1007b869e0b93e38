"""Optimizers that runs are made with."""

from typing import Any


def sgd(own: list[Any], lr: float) -> Any:
    import torch

    return torch.optim.SGD(own, lr=lr, momentum=0.9)


def two_groups(own: list[Any], lr: float) -> Any:
    import torch

    matrices = {"params": [p for p in own if p.dim() > 1], "weight_decay": 0.1}
    return torch.optim.AdamW(
        [matrices, {"params": [p for p in own if p.dim() < 2], "weight_decay": 0.0}], lr=lr
    )


def maximizes(own: list[Any], lr: float) -> Any:
    import torch

    return torch.optim.AdamW(own, lr=lr, maximize=True)
