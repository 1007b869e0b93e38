"""Which parameters decay, and the optimiser that is given them: one place for every engine."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from vtool.config.schema import Optim


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], settings: Optim) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: tensors of two or more dimensions decay, biases and norms do not."""
    trainable = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    decayed = [parameter for _, parameter in trainable if parameter.dim() >= 2]
    others = [parameter for _, parameter in trainable if parameter.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(module: nn.Module, settings: Optim) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101); its fused kernel updates all tensors in one call."""
    groups = parameter_groups(module.named_parameters(), settings)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)
