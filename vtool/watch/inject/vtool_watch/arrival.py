"""Gradients and weights as they arrive: digests, the engine's part, a reference step of AdamW."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from .digests import digest_of_bytes, digests, sampled_checksum
from .embeddings import EmbeddingRows
from .kept_gradients import gradient_of
from .model import FoundModel, holds_shards, local_shard
from .places import evenly_spaced, to_float64, widest

MOST_NAMES, _TENSORS, _COORDINATES = 20, 512, 256
_REFERENCE_ELEMENTS = 1 << 20
_LAYER = re.compile(r"^(.*?\.\d+)\.")
_NOT_OF_TEXT = re.compile(r"vis|audio|encoder|tower|cross", re.IGNORECASE)
"""Layers that some rows do not need: of images, of sound, and those that attend to these."""
_OF_IMAGES = re.compile(r"vision|visual", re.IGNORECASE)


def left_to_divide(optimizer: Any) -> float:
    """Return the divisor of the gradients at a step: a GradScaler leaves it to fused optimizers."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if isinstance(scale, Tensor) else 1.0


def is_given_up(optimizer: Any) -> bool:
    """Return whether a GradScaler makes a fused optimizer leave out this step."""
    overflow = getattr(optimizer, "found_inf", None)
    return isinstance(overflow, Tensor) and bool(overflow != 0)


def gradient_facts(
    found: FoundModel, divisor: float, rows: EmbeddingRows
) -> tuple[dict[str, Any], set[str]]:
    """Return the fields of `arrived` that need this process's gradients alone, and what has any.

    The names are those of trained parameters whose gradient is not 0.

    Args:
        divisor: what the step will divide them by.
        rows: looks at those of the embedding.
    """
    named = [(n, p) for n, p in found.model.named_parameters() if p.requires_grad]
    given = [(n, gradient_of(p)) for n, p in named]
    with_gradient = [(n, g) for n, g in given if g is not None]
    none = [n for n, g in given if g is None]
    parts = [local_shard(gradient) for _, gradient in with_gradient]
    parts = [g._values() if g.is_sparse else g for g in parts]
    squares = _together([_square(g) for g in parts])
    names = [n for n, _ in with_gradient]
    seen = list(zip(names, parts, squares))
    # a square may be rounded to 0, or overflow: those alone are looked at again
    zero = [n for n, g, square in seen if square == 0 and not bool((g != 0).any())]
    bad = [n for n, g, square in seen if not math.isfinite(square) and not _is_finite(g)]
    each = digests([sampled_checksum(_dense(local_shard(g))) for _, g in with_gradient])
    sharded = holds_shards(found.model)
    fact = {
        "norm": sum(squares) ** 0.5 / divisor,
        "largest": None if sharded else rows.largest(names, parts, squares),
        "digest": digest_of_bytes("".join(each).encode()),
        "tensors": dict(list(zip(names, each))[:_TENSORS]),
        "sharded": sharded,
        "whole": _whole(named),
        "trained": len(named),
        "no_gradient": none[:MOST_NAMES],
        "n_no_gradient": len(none),
        "zero_gradient": zero[:MOST_NAMES],
        "n_zero_gradient": len(zero),
        **_idle(found, [n for n, _ in named], {*none, *zero}),
        "nonfinite": bad[:MOST_NAMES],
        "n_nonfinite": len(bad),
    }
    return fact, {*names} - {*zero}


def _whole(named: list[tuple[str, Any]]) -> dict[str, str] | None:
    """Return digests of the trained weights that this process has whole, beside DTensors."""
    if not any(hasattr(p, "full_tensor") for _, p in named):
        return None
    whole = [(n, p) for n, p in named if not hasattr(p, "full_tensor")][:_TENSORS]
    return dict(zip([n for n, _ in whole], digests([sampled_checksum(p) for _, p in whole])))


def _idle(found: FoundModel, trained: list[str], without: set[str]) -> dict[str, Any]:
    """Return the layers of which no trained tensor has a gradient: of text, and of images."""
    cross = {n for n, m in found.model.named_modules() if "Cross" in type(m).__name__}
    layers: dict[str, list[bool]] = {}
    for name in trained:
        layer = _LAYER.match(name)
        if layer is not None and layer.group(1) not in cross:
            layers.setdefault(layer.group(1), []).append(name in without)
    idle = [layer for layer, none in layers.items() if all(none)]
    seeing = [layer for layer in layers if _OF_IMAGES.search(layer)]
    return {
        "idle": [layer for layer in idle if not _NOT_OF_TEXT.search(layer)][:MOST_NAMES],
        "of_images": {"layers": len(seeing), "idle": len(set(seeing) & set(idle))},
    }


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def _square(part: Tensor) -> Tensor:
    """Return the square of a gradient's norm; of a large one without a copy in 64 bits."""
    if part.numel() >= 1 << 24:
        norm: Tensor = part.norm(dtype=torch.float32).to(widest(part.device))
        return norm * norm
    return part.to(widest(part.device)).pow(2).sum()


def _is_finite(part: Tensor) -> bool:
    return bool(part.isfinite().all())


def _together(values: list[Tensor]) -> list[float]:
    if not values:
        return []
    if len({value.device for value in values}) > 1:
        values = [value.cpu() for value in values]
    return [float(value) for value in torch.stack(values).cpu().tolist()]


def norm_facts(
    name: str | None, norm: Any, sums: list[Tensor], scale: float, divisor: float, world: int
) -> dict[str, Any]:
    """Return the fields of `arrived` on a norm's weight: the final one's, or `inner`."""
    weight, gradient = norm.weight, gradient_of(norm.weight)
    total = torch.stack([to_float64(each.cpu()) for each in sums]).sum(0) / scale
    size = len(total)
    at = evenly_spaced(size, _COORDINATES, total.device)
    begin, part = shard_of(weight, gradient)
    part = part / divisor
    values: list[float | None] = [
        float(part[i - begin]) if begin <= i < begin + len(part) else None for i in at.tolist()
    ]
    fact: dict[str, Any] = {
        "norm_name": name,
        "norm_at": at.tolist(),
        "norm_sum": [float(x) for x in total[at]],
        "norm_gradient": values,
        "engine_factor": None,
        "engine_misfit": None,
    }
    if world == 1 and len(part) == size:
        theirs, ours = part, total
        factor = (theirs @ ours) / (ours @ ours).clamp_min(1e-300)
        fact["engine_factor"] = float(factor)
        fact["engine_misfit"] = float((theirs - factor * ours).norm() / theirs.norm())
    return fact


def shard_of(parameter: Any, tensor: Any) -> tuple[int, Tensor]:
    """Return where this process's part of a vector begins, and the part, on the CPU."""
    part = local_shard(tensor).cpu().double()
    if not hasattr(tensor, "full_tensor"):
        return 0, part
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements = tensor.placements
    if all(isinstance(each, Replicate) for each in placements):
        return 0, part
    if not all(isinstance(each, (Replicate, Shard)) for each in placements):
        raise ValueError(f"its gradient is kept as {placements}")
    _, offset = compute_local_shape_and_global_offset(
        parameter.shape, tensor.device_mesh, placements
    )
    return int(offset[0]), part


class AdamWReference:
    """A few small tensors before a step, and where AdamW in float64 would take them."""

    def __init__(self, found: FoundModel, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.why = _unlike_adamw(optimizer)
        self.before: dict[str, tuple[Any, Tensor, Tensor, dict[str, Any], dict[str, Any]]] = {}
        if self.why is not None:
            return
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        named = {
            n: p
            for n, p in found.model.named_parameters()
            if id(p) in groups and p.grad is not None and not p.grad.is_sparse
        }
        sizes = {n: local_shard(p).numel() for n, p in named.items()}
        sized = sorted((k, n) for n, k in sizes.items() if 0 < k <= _REFERENCE_ELEMENTS)
        middle, divisor = len(sized) // 2, left_to_divide(optimizer)
        for name in {n for _, n in sized[:2] + sized[middle : middle + 2]}:
            p = named[name]
            state = {
                k: local_shard(v).clone() if isinstance(v, Tensor) else v
                for k, v in optimizer.state.get(p, {}).items()
            }
            group = {k: v for k, v in groups[id(p)].items() if k != "params"}
            gradient = (
                local_shard(p.grad) / divisor if divisor != 1.0 else local_shard(p.grad).clone()
            )
            self.before[name] = (p, local_shard(p).clone(), gradient, state, group)

    def facts(self) -> dict[str, Any] | None:
        """Return `reference` of `stepped`: how far each is from its reference step."""
        if self.why is not None or not self.before:
            return None
        found: dict[str, Any] = {}
        for name, (p, was, gradient, state, group) in self.before.items():
            now, x = (
                to_float64(local_shard(p)),
                adamw_step(was, gradient, state, group, self.optimizer),
            )
            lr = float(group["lr"])
            old = to_float64(was)
            ulp = torch.finfo(was.dtype).eps * old.abs().clamp_min(max(lr, 1e-30))
            off = ((now - x).abs() - _of_correction(x - old, state, group)).clamp_min(0)
            due = (to_float64(gradient) != 0) & (x != old)
            moved = ((now != old) & due).sum() / due.sum().clamp_min(1)
            found[name] = {
                "off": float((off / ulp).max()),
                "moved": float(moved) if bool(due.any()) else None,
                "elements": was.numel(),
                "dtype": str(was.dtype),
                "age": int(float(state.get("step", 0))),
            }
        return found


def _of_correction(update: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """Return an update's error where 1 − βᵗ is taken in float32 (capturable, compiled)."""
    step = float(state.get("step", 0)) + 1
    off: Tensor = update.abs() * sum(2.0**-24 / (1 - float(b) ** step) for b in group["betas"])
    return off


def _unlike_adamw(optimizer: Any) -> str | None:
    name = type(optimizer).__name__
    if type(optimizer) not in (torch.optim.AdamW, torch.optim.Adam):
        return f"the optimizer is {name}, not torch's AdamW or Adam"
    for group in optimizer.param_groups:
        for key in ("amsgrad", "maximize"):
            if group.get(key):
                return f"{name} with {key}"
    return None


def adamw_step(
    w: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any], optimizer: Any
) -> Tensor:
    """Return where one step takes a weight, in float64."""
    b1, b2 = (float(b) for b in group["betas"])
    lr, eps, decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
    x, g = to_float64(w), to_float64(gradient)
    m = to_float64(state["exp_avg"]) if "exp_avg" in state else torch.zeros_like(x)
    v = to_float64(state["exp_avg_sq"]) if "exp_avg_sq" in state else torch.zeros_like(x)
    step = float(state.get("step", 0)) + 1
    decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")
    if decoupled:
        x = x * (1 - lr * decay)
    else:
        g = g + decay * x
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    denominator = (v / (1 - b2**step)).sqrt() + eps
    end: Tensor = x - lr * (m / (1 - b1**step)) / denominator
    return end


def group_facts(found: FoundModel, optimizer: Any) -> list[dict[str, Any]]:
    """Return `groups` of `stepped`."""
    vectors = {id(p) for p in found.model.parameters() if p.requires_grad and _is_vector(p)}
    facts = []
    for group in optimizer.param_groups[:64]:
        fact: dict[str, Any] = {
            "tensors": len(group["params"]),
            "vectors": sum(id(p) in vectors for p in group["params"]),
        }
        for key in ("lr", "initial_lr", "eps", "weight_decay", "momentum"):
            value = as_number(group.get(key))  # Adafactor's eps is a pair, its lr may be None
            if value is not None:
                fact[key] = value
        if "maximize" in group:
            fact["maximize"] = bool(group["maximize"])
        if isinstance(group.get("betas"), (list, tuple)):
            fact["betas"] = [as_number(b) for b in group["betas"]]
        facts.append(fact)
    return facts


def _is_vector(parameter: Any) -> bool:
    """Return whether a parameter is a norm's or a bias, and no piece of several."""
    pieces = hasattr(parameter, "ds_tensor") or getattr(parameter, "_fsdp_flattened", False)
    return parameter.dim() == 1 and not pieces


def as_number(value: Any) -> float | None:
    """Return a setting of an optimizer's group as a number; None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def with_a_rate(found: FoundModel, optimizer: Any) -> set[str]:
    """Return names of parameters that an optimizer has with a learning rate."""
    going = {
        id(p)
        for group in optimizer.param_groups
        if as_number(group.get("lr")) != 0  # None: the optimizer finds a rate itself
        for p in group["params"]
    }
    return {n for n, p in found.model.named_parameters() if id(p) in going}


def weight_digests(found: FoundModel) -> dict[str, str]:
    """Return the digest of each parameter; of a large one, of some of its elements."""
    named = list(found.model.named_parameters())
    each = digests([sampled_checksum(local_shard(p)) for _, p in named])
    return dict(zip([n for n, _ in named], each))


class WeightDigests:
    """Digests of the weights, from one look to the next."""

    def __init__(self) -> None:
        self.before: dict[str, str] = {}

    def facts(self, found: FoundModel, now: dict[str, str], moving: set[str]) -> dict[str, Any]:
        """Return the fields of `drift`.

        Args:
            now: each parameter's digest.
            moving: names that had a gradient and a learning rate.
        """
        compared = [n for n in now if n in moving and n in self.before]
        stuck = [n for n in compared if self.before[n] == now[n]]
        self.before = now
        return {
            "digest": digest_of_bytes("".join(now.values()).encode()),
            "tensors": dict(list(now.items())[:_TENSORS]),
            "sharded": holds_shards(found.model),
            "stuck": stuck[:MOST_NAMES],
            "n_stuck": len(stuck),
            "compared": len(compared),
        }
