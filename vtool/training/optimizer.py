"""The optimizers, and which parameters they update how: one place for every engine.

To add one: a function in `OPTIMIZERS`, its name in `Optim.name` of the schema, and what
CONTRIBUTING.md lists under "A learning-rate schedule, an optimizer, the loss". Megatron has
optimizers of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from vtool.config.readback import Observed
from vtool.config.schema import Optim
from vtool.engines.contract import OptimizerGroup
from vtool.models.observe_model import dtype_name
from vtool.training.eight_bit import AdamW8bit, states_of

ParameterGroup = dict[str, Any]
"""`params`, `weight_decay`, and `lr_factor`: the group's learning rate divided by `optim.lr`."""


def adamw(groups: list[ParameterGroup], settings: Optim) -> torch.optim.Optimizer:
    """Build AdamW (arXiv 1711.05101); its fused kernel updates all tensors in one call.

    With states of 8 bit each tensor is updated by itself.
    """
    if settings.states == "8bit":
        return AdamW8bit(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


OPTIMIZERS: dict[str, Callable[[list[ParameterGroup], Optim], torch.optim.Optimizer]] = {
    "adamw": adamw
}
"""The functions that build an optimizer, by the value of `optim.name`."""


def build_optimizer(
    module: nn.Module, settings: Optim, component: Callable[[str], str]
) -> torch.optim.Optimizer:
    """Build the optimizer of the settings over a module's trainable parameters.

    Args:
        component: returns the component (of `optim.groups`) of a parameter, by its name.
    """
    groups = parameter_groups(module.named_parameters(), settings, component)
    return OPTIMIZERS[settings.name](groups, settings)


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    settings: Optim,
    component: Callable[[str], str],
) -> list[ParameterGroup]:
    """Group trainable parameters by learning rate and weight decay.

    Tensors of two or more dimensions decay, biases and norms do not (`Optim.treatment`).
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups.setdefault(settings.treatment(component(name), parameter.dim()), []).append(
                parameter
            )
    return [
        {"params": params, "lr_factor": factor, "weight_decay": decay}
        for (factor, decay), params in groups.items()
    ]


def observe_parameter_groups(
    groups: Iterable[OptimizerGroup], peak: float, component: Callable[[str], str]
) -> Iterator[Observed]:
    """Yield the live optimizers' values of the settings `optim`, and the dtype that they update.

    Args:
        peak: the highest learning rate of the live schedule, which a group multiplies by its own
            factor.
        component: returns the component (of `optim.groups`) of a parameter, by its name.
    """
    for number, group in enumerate(groups):
        where = f"{type(group.optimizer).__name__}, group {number}"
        yield from observe_group(group.optimizer, group.settings, where)
        if hasattr(group.optimizer, "state"):
            yield Observed("optim.states", states_of(group.optimizer), where)
        for name, decays in dict.fromkeys(
            (component(member.name), member.dimensions >= 2) for member in group.members
        ):
            of = f"{where} ({name}: {'matrices' if decays else 'biases and norms'})"
            yield Observed(f"optim.groups.{name}.lr", peak * group.settings["lr_factor"], of)
            yield Observed(
                f"optim.groups.{name}.weight_decay", group.settings["weight_decay"], of, (decays,)
            )
        for dtype in dict.fromkeys(member.dtype for member in group.members):
            yield Observed("model.dtype.weights", dtype_name(dtype), where)


def observe_group(optimizer: Any, group: Any, where: str) -> Iterator[Observed]:
    """Yield one AdamW group's values of the settings that all groups share."""
    decoupled = (  # RAdam and NAdam have a decoupled decay too
        isinstance(optimizer, torch.optim.AdamW)
        or (isinstance(optimizer, torch.optim.Adam) and group.get("decoupled_weight_decay"))
        or getattr(optimizer, "adam_w_mode", False)
    )
    yield Observed("optim.name", "adamw" if decoupled else type(optimizer).__name__.lower(), where)
    for name in ("betas", "eps"):
        if name in group:
            yield Observed(f"optim.{name}", group[name], where)
