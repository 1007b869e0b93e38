"""Finds hooks that somebody put on the gradients of parameters, besides engines and the watch."""

from __future__ import annotations

import functools
from typing import Any

from .model import FoundModel

_ENGINES = (
    "torch.distributed.",
    "torch.nn.parallel.",
    "accelerate.",
    "deepspeed.",
    "megatron.",
    "transformer_engine.",
    "vtool_watch.",
    "vtool.watch.",
)
"""Modules whose hooks move gradients to where the optimizer has them, and change none."""
_NAMES = 20


def hooked_gradients(found: FoundModel) -> dict[str, Any]:
    """Return `hooked` of `arrived`: trained parameters whose gradients a hook may change."""
    names = [n for n, p in found.model.named_parameters() if p.requires_grad and _is_hooked(p)]
    return {"names": names[:_NAMES], "count": len(names)}


def _is_hooked(parameter: Any) -> bool:
    hooks = [
        *(getattr(parameter, "_backward_hooks", None) or {}).values(),
        *(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values(),
    ]
    return any(not f"{_home(hook)}.".startswith(_ENGINES) for hook in hooks)


def _home(hook: Any) -> str:
    """Return the module that a hook is of."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    return str(getattr(hook, "__module__", None) or type(hook).__module__)
