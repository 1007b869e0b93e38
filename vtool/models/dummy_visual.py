"""The dummy visual forward: the tower runs without an image, for gradients of exactly 0.

Data parallel engines wait for every trained parameter on every rank, and FSDP2 gathers the tower's
weights block by block on all of them. Where one rank has images and another has none, that one runs
the tower on zeros (verl#5881). As that pull request's review asked for: the outputs are taken as
the model's own forward pass takes them, all of them are summed to one scalar, and that is added
once, out of place.

0 · NaN is NaN: neither the sum nor a gradient is made by a multiplication with 0. Whatever the
tower computes, the scalar is a constant, and what comes back to a weight of the tower is replaced
by zeros.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vtool.families.family import Family
from vtool.models.tower_index import TowerIndexer


class _ZeroGradient(torch.autograd.Function):
    """A function whose backward pass returns zeros, whatever comes back to it."""

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


class _NegativeZero(_ZeroGradient):
    """−0.0 in place of a number: x + (−0.0) is x to the bit, also where x is −0.0."""

    @staticmethod
    def forward(_context: Any, total: Tensor) -> Tensor:
        return torch.full_like(total, -0.0)


class _WithoutGradient(_ZeroGradient):
    """A view of a weight: the tower's own backward pass multiplies zeros by what may be NaN."""

    @staticmethod
    def forward(_context: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)


def dummy_visual_term(
    family: Family, model: nn.Module, device: torch.device, indexer: TowerIndexer | None = None
) -> Tensor:
    """Return a scalar that adds nothing, and depends on each trainable parameter of the tower.

    The forward and the backward pass compute all of the tower.

    Args:
        indexer: of the model; None: its tower asks the device for the size of the image.
    """
    given: dict[str, Any] = family.smallest_image(model, device)
    if indexer is not None:
        size = family.smallest_image(model, torch.device("cpu"))["image_grid_thw"]
        given["image_index"] = indexer.index(size).map(lambda tensor: tensor.to(device))
    with _weights_without_gradient(family.tower(model)):
        output = model.model.get_image_features(**given, return_dict=True)  # type: ignore[union-attr,operator]
    zero: Tensor = _NegativeZero.apply(sum(term.sum() for term in family.features(output)))  # type: ignore[no-untyped-call]
    return zero


@contextmanager
def dummy_visual_forward(
    family: Family, model: nn.Module, indexer: TowerIndexer | None = None
) -> Iterator[None]:
    """Add the dummy's term to the embeddings in the model's forward passes.

    It is added where the features of images come in: engines that gather weights block by block
    need the same order on every rank, forward and backward.
    """

    def add(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
        return embedded + dummy_visual_term(family, model, embedded.device, indexer)

    hook = model.get_input_embeddings().register_forward_hook(add)  # type: ignore[operator]
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _weights_without_gradient(modules: list[nn.Module]) -> Iterator[None]:
    """Let each module compute with views of its trainable weights, whose gradients are zeros.

    The views are put in place when a module's forward pass begins, behind FSDP2's own hook, which
    has gathered the weights by then, and taken away when it ends, before FSDP2's, which frees them.

    Args:
        modules: inner ones first; a weight belongs to the first that has it.
    """
    assigned: set[nn.Module] = set()
    hooks = []
    originals: dict[nn.Module, dict[str, nn.Parameter]] = {}

    def replace(own: list[nn.Module]) -> None:
        for module in own:
            originals[module] = {
                name: weight
                for name, weight in module._parameters.items()
                if weight is not None and weight.requires_grad
            }
            for name, weight in originals[module].items():
                module._parameters[name] = _WithoutGradient.apply(weight)  # type: ignore[no-untyped-call]

    def restore(own: list[nn.Module]) -> None:
        for module in own:
            module._parameters.update(originals.pop(module, {}))

    for outer in modules:
        own = [module for module in outer.modules() if module not in assigned]
        assigned.update(own)
        hooks += [
            outer.register_forward_pre_hook(lambda *_, own=own: replace(own)),
            outer.register_forward_hook(lambda *_, own=own: restore(own), prepend=True),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        restore(list(originals))  # of a forward pass that did not come to its end
