"""Copies everything that a processed model holds, not its parameters and buffers alone.

Between loading and serving a framework packs weights for its kernels, and keeps them anywhere.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from .state import NamedState, named_tensors

_DEEPEST = 2
"""The depth to which lists and dicts that a module keeps are searched."""


def snapshot_everything(model: Any) -> NamedState:
    """Copy every tensor: parameters, buffers, and those that modules keep in plain attributes."""
    found = named_tensors(model)
    for name, module in model.named_modules() if hasattr(model, "named_modules") else ():
        for attribute, value in vars(module).items():
            if not attribute.startswith(("_parameters", "_buffers", "_modules")):
                found |= dict(_tensors(f"{name}.{attribute}" if name else attribute, value))
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def _tensors(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.device.type != "meta" and not value.is_sparse:
            yield name, value
    elif depth < _DEEPEST and isinstance(value, dict | list | tuple):
        pairs: Iterable[tuple[Any, Any]] = (
            value.items() if isinstance(value, dict) else enumerate(value)
        )
        for key, inner in pairs:
            yield from _tensors(f"{name}[{key!r}]", inner, depth + 1)
