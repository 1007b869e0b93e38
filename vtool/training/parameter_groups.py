"""Which parameters decay, and the optimiser that is given them: one place for every engine."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from vtool.config.schema import Optim


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], settings: Optim, part: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Trainable parameters in groups: by part of the model, and in each, tensors of two or more dimensions, which decay, and others.

    A group's `lr_factor` is its learning rate divided by `optim.lr`.

    Args:
        part: given a parameter's name, one of `optim.groups`.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups.setdefault(settings.treatment(part(name), parameter.dim()), []).append(parameter)
    return [{"params": params, "lr_factor": factor, "weight_decay": decay} for (factor, decay), params in groups.items()]


def build_optimizer(module: nn.Module, settings: Optim, part: Callable[[str], str]) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101); its fused kernel updates all tensors in one call."""
    groups = parameter_groups(module.named_parameters(), settings, part)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)
