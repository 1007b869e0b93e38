"""The gradient of the final norm's weight, from what went into the norm and what came back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .places import widest


def norm_gradient(norm: Any, x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of a norm's weight, in float64 where its device has that.

    It does not depend on the weight. The norm is run by a twin with a weight of ones and no hooks:
    the real weight may be sharded. FSDP2 puts a class of its own before the norm's.
    """
    if x.shape != gradient.shape:
        raise ValueError(f"into the norm went {tuple(x.shape)}, out {tuple(gradient.shape)}")
    kind: Any = next(
        c for c in type(norm).__mro__ if not c.__module__.startswith("torch.distributed")
    )
    twin: Any = object.__new__(kind)
    twin.__dict__.update(norm.__dict__)
    weight = torch.ones(x.shape[-1], device=x.device, dtype=torch.float32, requires_grad=True)
    twin.__dict__["_parameters"] = {
        name: weight if name == "weight" else None if value is None else torch.zeros_like(weight)
        for name, value in norm._parameters.items()
    }
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        out = kind.forward(twin, x.detach().float())
        (found,) = torch.autograd.grad(out, weight, gradient.to(out.dtype))
    return found.to(widest(found.device))
