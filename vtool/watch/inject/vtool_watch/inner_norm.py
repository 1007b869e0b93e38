"""A norm within the last layer, whose gradient is recomputed beside the final norm's.

What happened to one tensor's gradient is no word about all of them: with a second one, far enough
from the first, a factor of the whole gradient can be distinguished from one of the final norm.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from .norm import norm_gradient

_OF_IMAGES = re.compile(r"vis|audio|encoder|tower|cross", re.IGNORECASE)


def find_inner_norm(base: Any, norm: Any) -> tuple[str | None, Any]:
    """Return name and module of the last norm of the final norm's kind and width before it."""
    if norm is None:
        return None, None
    kind, found = _kind(norm), (None, None)
    for name, module in base.named_modules():
        weight = getattr(module, "weight", None)
        if module is norm or _kind(module) != kind or not isinstance(weight, Tensor):
            continue
        if weight.dim() == 1 and weight.shape == norm.weight.shape and not _OF_IMAGES.search(name):
            found = name, module
    return found


def _kind(module: Any) -> str:
    return type(module).__name__.removeprefix("FSDP")


class InnerNorm:
    """Hooks one norm, and recomputes the gradient of its weight in each backward pass."""

    def __init__(self, base: Any, norm: Any) -> None:
        self.name, self.norm = find_inner_norm(base, norm)
        self._held: dict[str, Any] | None = None

    def at_forward(self, module: Any, args: Any, output: Any) -> None:
        """Have the gradient of this output recorded: the hook of a forward pass."""
        self._held = None
        if not (args and isinstance(args[0], Tensor) and isinstance(output, Tensor)):
            return
        if not output.requires_grad or hasattr(output, "full_tensor"):
            return
        held: dict[str, Any] = {"sum": None, "passes": 0}
        given = args[0].detach()

        def read(gradient: Tensor) -> None:
            try:
                held["passes"] += 1
                held["sum"] = norm_gradient(module, given, gradient.detach())
            except Exception as error:
                held["why"] = repr(error)

        output.register_hook(read)
        self._held = held

    def take(self) -> dict[str, Any] | None:
        """Return the record that the pass just seen fills in its backward pass."""
        held, self._held = self._held, None
        return held


def sum_of(helds: list[dict[str, Any] | None]) -> list[Tensor] | None:
    """Return the gradient of each pass, or None where one was not seen, or seen twice."""
    sums = [held["sum"] for held in helds if held is not None and held["passes"] == 1]
    known = [each for each in sums if isinstance(each, torch.Tensor)]
    return known if known and len(known) == len(helds) else None
