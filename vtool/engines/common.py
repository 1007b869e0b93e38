"""What engines share whose parameters are a torch module's own:

clipping, the update, and their state by name.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from vtool.engines.contract import Group, Member
from vtool.models.adapters import (
    Adapter,
    adapter_names,
    adapter_scale,
    has_adapters,
    is_adapter,
    merge_adapter,
    saved_name,
)

Put = Callable[[Tensor, Tensor], Tensor]
"""Given a parameter and a whole tensor of its shape, what this rank keeps of that tensor."""


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def sizes(module: nn.Module) -> tuple[int, int]:
    """The parameters of a whole model, and those of them that are trained."""
    return sum(parameter.numel() for parameter in module.parameters()), sum(
        parameter.numel() for parameter in trainable(module)
    )


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, largest: float | None) -> float:
    """Scale the gradients from `norm`, a scalar, down to `largest`, where both are finite.

    Returns `norm`.
    """
    if largest is not None and math.isfinite(norm.item()):
        clip_grads_with_norm_(parameters, largest, norm)
    return norm.item()


def update(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One step with this learning rate, of each group times its own `lr_factor`;

    the gradients are let go.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """`eval()`, and afterwards `train()`."""
    module.eval()
    try:
        yield
    finally:
        module.train()


def backward(loss: Tensor) -> None:
    """Nothing, where the loss hangs on no trained parameter:

    the tower alone is trained, and there is no image.
    """
    if loss.requires_grad:
        torch.autograd.backward(loss)


def gradients(module: nn.Module, whole: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """See `vtool.engines.contract.Engine.gradients`.

    `whole`: given a tensor as this rank has it, all of it.
    """
    there = ((name, parameter.grad) for name, parameter in named_parameters(module))
    return {
        name: whole(gradient).to("cpu", copy=True)
        for name, gradient in there
        if gradient is not None
    }


def kept_by_checkpoints(module: nn.Module) -> Adapter:
    """What of a model goes into a checkpoint:

    all of it, or the adapters, where nothing else is trained.
    """
    return "only" if has_adapters(module) else "merged"


def iter_hf_weights(
    module: nn.Module, adapter: Adapter, whole: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """See `vtool.engines.contract.Engine.iter_hf_weights`.

    `whole`: given a tensor as this rank has it, all of it.
    """
    tensors = model_tensors(module)
    for name, tensor in tensors.items():
        if is_adapter(name) != (adapter == "only"):
            continue
        a, b = adapter_names(name)
        if adapter == "merged" and a in tensors:
            yield (
                name,
                merge_adapter(
                    whole(tensor), whole(tensors[a]), whole(tensors[b]), adapter_scale(module)
                ),
            )
        else:
            yield name, whole(tensor)


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by their names in files, as this rank has them, each once."""
    state = {saved_name(name): parameter.detach() for name, parameter in module.named_parameters()}
    kept = module.state_dict().keys()  # without the buffers that are computed, not learnt
    return state | {name: buffer for name, buffer in module.named_buffers() if name in kept}


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `<parameter>.<entry>`, as this rank has it."""
    return {
        f"{saved_name(name)}.{entry}": value
        for name, parameter in module.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def load_tensors(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    model: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    put: Put,
) -> None:
    """Take up whole tensors by name, of the model and of the optimizer."""
    own = {
        name: tensor
        for name, tensor in model_tensors(module).items()
        if is_adapter(name) or not has_adapters(module)
    }
    assert own.keys() == model.keys(), "a checkpoint of the same config has the same tensors"
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(put(tensor, model[name]))
    parameters = {saved_name(name): parameter for name, parameter in module.named_parameters()}
    optimizer.state.clear()
    for key, value in state.items():
        name, _, entry = key.rpartition(".")
        parameter = parameters[name]
        # What is counted for a parameter, such as its steps, is not of its shape.
        kept = put(parameter.detach(), value) if value.shape == parameter.shape else value
        optimizer.state[parameter][entry] = kept.to(parameter.device, copy=True)


def optimizer_groups(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Group]:
    """See `vtool.engines.contract.Engine.optimizer_groups`."""
    names = {parameter: saved_name(name) for name, parameter in module.named_parameters()}
    for group in optimizer.param_groups:
        members = tuple(Member(names[one], one.dim(), one.dtype) for one in group["params"])
        yield Group(optimizer, group, members)


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """See `vtool.engines.contract.Engine.named_parameters`."""
    return ((saved_name(name), parameter) for name, parameter in module.named_parameters())
