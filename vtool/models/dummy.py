"""The dummy visual forward: a micro-batch without images runs the vision tower all the same, for
gradients of exactly 0.

Data parallel engines wait for every trained parameter on every rank, and FSDP2 gathers the tower's
weights block by block on all of them. Where one rank has images and another has none, that one runs
the tower on zeros (verl#5881). As that pull request's review asked for: the outputs are taken as
the model's own forward pass takes them, all of them are summed to one scalar, and that is added
once, out of place.

0 · NaN is NaN: neither the sum nor a gradient is made by a multiplication with 0. Whatever the
tower computes, the scalar is a constant, and what comes back to a weight of the tower is replaced
by zeros.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vtool.families.family import Family


class _Constant(torch.autograd.Function):
    """−0.0 instead of a number, and zeros instead of its gradient.

    x + (−0.0) is x to the bit, also where x is −0.0.
    """

    @staticmethod
    def forward(_context: Any, total: Tensor) -> Tensor:
        return torch.full_like(total, -0.0)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


class _WithoutGradient(torch.autograd.Function):
    """A weight, with zeros instead of its gradient:

    the tower's own backward pass multiplies zeros by what may not be finite.
    """

    @staticmethod
    def forward(_context: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


def dummy_visual(family: Family, model: nn.Module, device: torch.device) -> Tensor:
    """A scalar that adds nothing, and hangs on every trainable parameter of the vision tower.

    Forwards and backwards run all of it.
    """
    pixels, grid = family.smallest_image(model, device)
    with _weights_without_gradient(family.tower(model)):
        output = model.model.get_image_features(pixels, grid, return_dict=True)  # type: ignore[union-attr,operator]
    zero: Tensor = _Constant.apply(sum(term.sum() for term in family.features(output)))  # type: ignore[no-untyped-call]
    return zero


@contextmanager
def adding_dummy(family: Family, model: nn.Module) -> Iterator[None]:
    """Meanwhile the model's forward passes add the dummy to the embeddings, where the features of
    images come in.

    Engines that gather weights block by block need the same order on every rank, forwards and
    backwards.
    """

    def add(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
        return embedded + dummy_visual(family, model, embedded.device)

    hook = model.get_input_embeddings().register_forward_hook(add)  # type: ignore[operator]
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _weights_without_gradient(parts: list[nn.Module]) -> Iterator[None]:
    """Meanwhile each part computes with views of its trainable weights, from which zeros come back.

    They are put in place when a part's forward pass begins, behind FSDP2's own hook, which has
    gathered the weights by then, and taken away when it ends, before FSDP2's, which frees them.

    Args:
        parts: inner ones first; a weight is of the first that has it.
    """
    seen: set[nn.Module] = set()
    hooks = []
    kept: dict[nn.Module, dict[str, nn.Parameter]] = {}
    for part in parts:
        mine = [module for module in part.modules() if module not in seen]
        seen.update(mine)
        hooks.append(part.register_forward_pre_hook(_before(mine, kept)))
        hooks.append(part.register_forward_hook(_after(mine, kept), prepend=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, weights in kept.items():  # of a forward pass that did not come to its end
            module._parameters.update(weights)


def _before(
    modules: list[nn.Module], kept: dict[nn.Module, dict[str, nn.Parameter]]
) -> Callable[..., None]:
    def put(*_: Any) -> None:
        for module in modules:
            kept[module] = {
                name: weight
                for name, weight in module._parameters.items()
                if weight is not None and weight.requires_grad
            }
            for name, weight in kept[module].items():
                module._parameters[name] = _WithoutGradient.apply(weight)  # type: ignore[no-untyped-call]

    return put


def _after(
    modules: list[nn.Module], kept: dict[nn.Module, dict[str, nn.Parameter]]
) -> Callable[..., None]:
    def take_away(*_: Any) -> None:
        for module in modules:
            module._parameters.update(kept.pop(module, {}))

    return take_away
