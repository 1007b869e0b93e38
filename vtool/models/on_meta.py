"""Models whose parameters have no memory yet: on torch's meta device.

Their buffers have: those that no file keeps, such as the frequencies of positions, are computed by
the constructors themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_META = torch.device("meta")
_TWIN = "_vtool_on_meta"


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build modules whose parameters are on the meta device, and whose buffers are real.

    A parameter is moved when a module registers it. What its constructor has asked of the system by
    then has not been written to, and so takes no memory.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            # one that two modules are given stays one
            if not hasattr(param, _TWIN):
                twin = nn.Parameter(param.detach().to(_META), param.requires_grad)
                setattr(param, _TWIN, twin)
            param = getattr(param, _TWIN)
        register(module, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def stand_ins(model: nn.Module) -> Iterator[None]:
    """Put parameters of no bytes, on the CPU, in the place of those on the meta device.

    What is built next to a layer goes where its weight is: on the meta device it would lose its
    initial values.
    """
    swapped: list[tuple[nn.Module, str, nn.Parameter]] = []
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if parameter not in made:
                    one = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    made[parameter] = nn.Parameter(one, parameter.requires_grad)
                module._parameters[name] = made[parameter]
                swapped.append((module, name, parameter))
    try:
        yield
    finally:
        for module, name, parameter in swapped:
            parameter.requires_grad_(made[parameter].requires_grad)
            module._parameters[name] = parameter


def not_a_number(model: nn.Module) -> dict[str, Tensor]:
    """Return a stand-in for each parameter, of no bytes, where a checkpoint's weights follow.

    One that they left out would show itself in the first loss.
    """
    nan = torch.full((), torch.nan)
    return {name: nan.expand(parameter.shape) for name, parameter in model.named_parameters()}
