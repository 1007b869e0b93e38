"""Which parameters decay, and the optimizer that is given them: one place for every engine."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from vtool.config.readback import Observed
from vtool.config.schema import Optim
from vtool.engines.contract import Group
from vtool.models.read_back import dtype_name


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    settings: Optim,
    part: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Trainable parameters in groups: by part of the model, and in each, tensors of two or more
    dimensions, which decay, and others.

    A group's `lr_factor` is its learning rate divided by `optim.lr`.

    Args:
        part: given a parameter's name, one of `optim.groups`.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups.setdefault(settings.treatment(part(name), parameter.dim()), []).append(parameter)
    return [
        {"params": params, "lr_factor": factor, "weight_decay": decay}
        for (factor, decay), params in groups.items()
    ]


def build_optimizer(
    module: nn.Module, settings: Optim, part: Callable[[str], str]
) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101); its fused kernel updates all tensors in one call."""
    groups = parameter_groups(module.named_parameters(), settings, part)
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def read_back(
    groups: Iterable[Group], peak: float, part: Callable[[str], str]
) -> Iterator[Observed]:
    """What live optimizers have of the settings `optim`, and the precision of what they update.

    Args:
        peak: the highest learning rate of the live schedule, which a group multiplies by its own
            factor.
        part: given a parameter's name, one of `optim.groups`.
    """
    for number, group in enumerate(groups):
        where = f"{type(group.optimizer).__name__}, group {number}"
        yield from read_group(group.optimizer, group.settings, where)
        for name, decays in dict.fromkeys(
            (part(one.name), one.dimensions >= 2) for one in group.members
        ):
            of = f"{where} ({name}: {'matrices' if decays else 'biases and norms'})"
            yield Observed(f"optim.groups.{name}.lr", peak * group.settings["lr_factor"], of)
            yield Observed(
                f"optim.groups.{name}.weight_decay", group.settings["weight_decay"], of, (decays,)
            )
        for dtype in dict.fromkeys(one.dtype for one in group.members):
            yield Observed("model.dtype.weights", dtype_name(dtype), where)


def read_group(optimizer: Any, group: Any, where: str) -> Iterator[Observed]:
    """What one group of any AdamW has of settings that are the same for all groups."""
    decoupled = (
        isinstance(optimizer, torch.optim.AdamW)
        or group.get("decoupled_weight_decay")
        or getattr(optimizer, "adam_w_mode", False)
    )
    yield Observed("optim.name", "adamw" if decoupled else type(optimizer).__name__.lower(), where)
    for name in ("betas", "eps"):
        if name in group:
            yield Observed(f"optim.{name}", group[name], where)
