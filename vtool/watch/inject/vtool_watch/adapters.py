"""Adapters beside the weights that they adapt: found by structure, merged into them or not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .megatron import is_owned
from .model import local_shard
from .places import to_float64

_COORDINATES = 256
"""Values of each adapted weight that are kept from look to look."""
_ROUNDINGS = 16.0
"""The tolerance, in roundings of weight and product: adapters may be merged several times."""
_NAMES = 20
_ADAPTS = re.compile(r"(^|_)(lora|dora|loha|lokr|hada|vera|adapter)(_|$|[A-Z])")


_LAYER = re.compile(r"^(.*?\.\d+)\.")
_SAVED = re.compile(r"modules_to_save|trainable_tokens")
"""Names of what PEFT saves with the adapters."""


@dataclass
class AdaptedWeight:
    """A weight, and the module that adapts it."""

    name: str
    """The weight's name in the model."""
    module: Any
    weight: Any
    own: list[Any]
    """Parameters of the adapters themselves."""


def adapted_weights(model: Any) -> list[AdaptedWeight]:
    """Return the weights that have adapters: PEFT's layers, and others that name theirs so."""
    names = {id(p): n for n, p in model.named_parameters()}
    found: dict[int, AdaptedWeight] = {}
    for module in model.modules():
        base, weight = _base_of(module)
        if weight is None or id(weight) not in names:
            continue
        theirs = {id(p) for p in base.parameters()} if base is not module else {id(weight)}
        own = [p for p in module.parameters() if id(p) not in theirs]
        own = own if base is not module else [p for n, p in module.named_parameters() if _of(n)]
        if own and id(weight) not in found:
            found[id(weight)] = AdaptedWeight(names[id(weight)], module, weight, own)
    return list(found.values())


def _of(name: str) -> bool:
    return any(_ADAPTS.search(part) for part in name.split("."))


def _base_of(module: Any) -> tuple[Any, Any]:
    """Return the module that a module adapts, and its weight; None twice where there is none."""
    base = getattr(module, "base_layer", None)
    if isinstance(base, nn.Module):
        while isinstance(inner := getattr(base, "base_layer", None), nn.Module):
            base = inner  # adapters around adapters
        name = getattr(module, "parameter_name", None)
        weight = getattr(base, name if isinstance(name, str) else "weight", None)
        return base, weight if isinstance(weight, nn.Parameter) else None
    own = [*module._parameters, *module._modules]
    if not any(_ADAPTS.search(name) for name in own):
        return None, None
    weight = module._parameters.get("weight")
    if isinstance(weight, nn.Parameter):
        return module, weight
    others = [m for n, m in module._modules.items() if m is not None and not _ADAPTS.search(n)]
    held = [m for m in others if isinstance(m._parameters.get("weight"), nn.Parameter)]
    held = [m for m in held if m._parameters["weight"].dim() > 1]
    return (held[0], held[0]._parameters["weight"]) if len(held) == 1 else (None, None)


def _places(count: int, device: torch.device) -> Tensor:
    """Return places that lie in many rows and columns, the same at each call."""
    at = torch.arange(min(count, _COORDINATES), dtype=torch.int64, device=device)
    return at if count <= _COORDINATES else at * 0x9E3779B1 % count


def _values(weight: Any) -> Tensor:
    """Return the values of a weight that are kept, on its device."""
    part = local_shard(weight)
    at = _places(part.numel(), part.device)
    if part.dim() == 2:  # a view of it may be a copy
        return part[at // part.shape[1], at % part.shape[1]]
    return part.reshape(-1)[at]


def is_sampled(weight: Any) -> bool:
    """Return whether single values of a weight say what is in it: not quantized, not in pieces."""
    whole = not hasattr(weight, "full_tensor") and not hasattr(weight, "ds_tensor")
    return whole and bool(weight.is_floating_point()) and weight.numel() > 0


def _factors(module: Any) -> list[tuple[Any, Any, Any, bool]]:
    """Return each adapter's two matrices and factor, and whether their product lies transposed."""
    found = []
    for down, up, turned in (
        ("lora_A", "lora_B", bool(getattr(module, "fan_in_fan_out", False))),
        ("lora_a", "lora_b", False),
        ("lora_embedding_A", "lora_embedding_B", True),
    ):
        first, second = getattr(module, down, None), getattr(module, up, None)
        if first is None or second is None:
            continue
        pairs: list[tuple[Any, Any, Any]] = [(None, first, second)]
        if isinstance(first, (nn.ModuleDict, nn.ParameterDict)):
            pairs = [(name, first[name], second[name]) for name in first if name in second]
        for name, one, other in pairs:
            a, b = getattr(one, "weight", one), getattr(other, "weight", other)
            scaling = getattr(module, "scaling", 1.0)
            scaling = scaling.get(name, 1.0) if isinstance(scaling, dict) else scaling
            found.append((a, b, scaling, turned))
    return found


def _products(one: AdaptedWeight) -> list[Tensor] | None:
    """Return the product of each adapter at the values that are kept; None if it is not known."""
    part = local_shard(one.weight)
    if part.dim() != 2:
        return None
    at = _places(part.numel(), part.device)
    row, column = at // part.shape[1], at % part.shape[1]
    found = []
    for a, b, scaling, turned in _factors(one.module):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() != 2 or b.dim() != 2:
            return None
        shape = (a.shape[1], b.shape[0]) if turned else (b.shape[0], a.shape[1])
        if shape != tuple(part.shape) or hasattr(a, "full_tensor"):
            return None
        out, into = (column, row) if turned else (row, column)
        left = to_float64(b.detach()[out.to(b.device)])
        right = to_float64(a.detach()[:, into.to(a.device)])
        found.append(((left * right.T).sum(-1) * float(scaling)).cpu())
    return found or None


class AdaptedValues:
    """Some values of adapted weights, to see whether more than rounding has changed them."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def keep(self, weights: Iterable[AdaptedWeight]) -> None:
        """Take the values as they are now."""
        self._kept = {one.name: _values(one.weight) for one in weights if is_sampled(one.weight)}

    def moved(self, changed: list[AdaptedWeight]) -> dict[str, Any]:
        """Return which of the weights that changed were changed by more than rounding.

        `share`: the part of the adapters' product that the change is, over all of them; null where
        the product is not known. `anew`: the product is 0 everywhere now. `unknown`: weights that
        changed, and of which single values say nothing.
        """
        moved, pairs = [], []
        unknown = 0
        for one in changed:
            if one.name not in self._kept or not is_sampled(one.weight):
                unknown += 1
                continue
            was = to_float64(self._kept[one.name]).cpu()
            now = to_float64(_values(one.weight)).cpu()
            change, products = now - was, _products(one)
            size = now.abs() + was.abs()
            if products is None:  # a rotation rounds by the size of a whole row
                size = size + was.pow(2).mean().sqrt()
            else:
                size = size + sum(each.abs() for each in products)
                pairs.append((change, products))
            most = _ROUNDINGS * torch.finfo(one.weight.dtype).eps * size
            if bool((change.abs() > most).any()):
                moved.append(one.name)
        share = _share(pairs)
        if share is not None and 0.5 < share < 1.5:  # of some, less than a rounding
            moved = [one.name for one in changed if one.name in self._kept]
        return {
            "moved": moved[:_NAMES],
            "n_moved": len(moved),
            "share": share,
            "anew": bool(pairs) and not any(bool(p.any()) for _, each in pairs for p in each),
            "unknown": unknown,
        }


def _share(pairs: list[tuple[Tensor, list[Tensor]]]) -> float | None:
    """Return the part of the product of one adapter, or of all, that changes are nearest to."""
    count = {len(products) for _, products in pairs}
    if len(count) != 1:
        return None
    change = torch.cat([each for each, _ in pairs])
    each = [torch.cat([products[k] for _, products in pairs]) for k in range(count.pop())]
    found = []
    for product in [*each, torch.stack(each).sum(0)]:
        size = float(product @ product)
        if size > 0:
            share = float(change @ product) / size
            found.append((abs(share - 1), share))
    return min(found)[1] if found else None


def _beside(model: Any, live: list[AdaptedWeight], trained: list[Any]) -> list[str]:
    """Return the trained matrices of layers with adapters that nothing adapts, and nobody saves.

    Towers and projectors that are trained whole lie in no layer with adapters.
    """
    layers = {match.group(1) for one in live if (match := _LAYER.match(one.name))}
    own = {id(p) for one in live for p in (one.weight, *one.own)}
    ids = {id(p) for p in trained} - own
    return [
        name
        for name, p in model.named_parameters()
        if id(p) in ids and p.dim() > 1 and not _of(name)
        if (match := _LAYER.match(name)) and match.group(1) in layers
        if not _SAVED.search(name)
    ]


def adapter_facts(
    model: Any, weights: list[AdaptedWeight], owned: set[int], shared_out: bool
) -> dict[str, Any] | None:
    """Return `adapters` of `stepped`, but for what moved; None where there are no adapters.

    Args:
        model: the model that they are in.
        weights: its adapted weights.
        owned: parameters (by `id`) that any optimizer has.
        shared_out: the optimizer has shares of parameters: which ones is not known.
    """
    if not weights:
        return None

    def trained(p: Any) -> bool:
        return bool(p.requires_grad) and (shared_out or is_owned(p, owned))

    live = [one for one in weights if any(trained(p) for p in one.own)]
    base = [one.name for one in live if trained(one.weight)]
    beside = _beside(model, live, [p for p in model.parameters() if trained(p)])
    merged = [one.name for one in live if getattr(one.module, "merged", False) is True]
    return {
        "modules": len(weights),
        "trained": len(live),
        "base_trained": base[:_NAMES],
        "n_base_trained": len(base),
        "beside": beside[:_NAMES],
        "n_beside": len(beside),
        "merged": merged[:_NAMES],
        "n_merged": len(merged),
    }
