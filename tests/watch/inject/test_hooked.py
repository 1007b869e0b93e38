"""Hooks on gradients of parameters are listed; those of engines and of the watch are none."""

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vtool.watch.inject.vtool_watch.hooked import hooked_gradients


def listed(model: nn.Module) -> dict[str, Any]:
    around: Any = SimpleNamespace(model=model)
    return hooked_gradients(around)


def half(gradient: Any) -> Any:
    return gradient / 2


def by(times: float, gradient: Any) -> Any:
    return gradient * times


class Scale:
    def __call__(self, parameter: Any) -> None:
        parameter.grad *= 2

    def method(self, gradient: Any) -> Any:
        return gradient


@pytest.mark.parametrize("hook", [half, functools.partial(by, 2.0), Scale().method])
def test_hooks_of_a_users_own_are_listed(hook: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.register_hook(hook)
    model[0].bias.register_post_accumulate_grad_hook(Scale())
    found = listed(model)
    assert found == {"names": ["0.bias", "1.weight"], "count": 2}


@pytest.mark.parametrize(
    "home", ["torch.distributed.fsdp", "deepspeed.runtime", "vtool_watch.left"]
)
def test_hooks_of_engines_are_none(home: str) -> None:
    model = nn.Linear(2, 2)

    def note(gradient: Any) -> None:
        """Change nothing."""

    note.__module__ = home
    model.weight.register_hook(note)
    model(torch.ones(2)).sum().backward()
    assert listed(model) == {"names": [], "count": 0}
