"""Gradients of a few tensors of each layer, as backward passes leave them and as they arrive."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from .kept_gradients import fsdp2_records
from .model import FoundModel, is_compiled, is_recorded
from .places import evenly_spaced, to_float64

_TENSORS, OF_EACH, _COORDINATES, _MORE, _NAMES = 64, 2, 16, 192, 64
_PARTS = 2
"""Parts of a layer, as attention and MLP, of which a matrix is looked at."""
_LAYER = re.compile(r"^(.*?\.\d+)\.")


class GradSamples:
    """Notes what is in `.grad` after each backward pass: a few coordinates of each layer."""

    def __init__(self, found: FoundModel, fail: Any) -> None:
        self.found, self._fail = found, fail
        self._handles: list[Any] = []
        self._parameters: dict[str, Any] = {}
        self._picked: set[str] = set()
        """The smallest of each layer and some matrices, of which all layers are compared."""
        self._rows: str | None = None
        """The name of the embeddings, most of whose rows have no gradient."""
        self._seen: dict[str, Tensor] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        """The gradient's `id`, and how often it had been written in place."""

    def attach(self) -> None:
        """Attach the hooks, where nothing is compiled."""
        if self._handles or is_compiled(self.found) or self.found.layout is not None:
            return
        try:
            plain = _plain(self.found)
            picked = _of_each_layer(plain)
            embeddings = getattr(self.found.model.get_input_embeddings(), "weight", None)
            self._rows = next((n for n, p in plain.items() if p is embeddings), None)
            if self._rows is not None:
                picked[self._rows] = embeddings
            self._picked = set(picked)
            self._parameters = {**picked, **_of_all(plain)}
            for name, parameter in self._parameters.items():
                hook = self._hook(name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        except Exception:  # a parameter of another kind, which takes no hook: nothing is noted
            self.detach()

    def detach(self) -> None:
        """Remove the hooks, and release the tensors."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._parameters = [], {}
        self._clear()

    def _clear(self) -> None:
        self._seen.clear()
        self._stamps.clear()

    def forget(self) -> None:
        """Forget what was noted: those gradients are of a step that is over, or thrown away."""
        self._clear()

    def _hook(self, name: str) -> Any:
        def note(parameter: Any) -> None:
            try:
                if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_recorded():
                    return
                self._seen.pop(name, None)
                gradient = parameter.grad
                if gradient is not None:
                    self._stamps[name] = id(gradient), gradient._version
                    some = self._some(name, gradient)
                    if some is not None:
                        self._seen[name] = some
            except Exception as error:
                self._fail("left", error)

        return note

    def _some(self, name: str, gradient: Tensor) -> Tensor | None:
        """Return a copy of some coordinates; None where there are no plain ones."""
        if gradient.is_sparse or hasattr(gradient, "full_tensor"):
            return None
        if not gradient.is_contiguous() or not gradient.numel():
            return None
        if name == self._rows:
            return gradient.detach()[:, gradient.shape[1] // 2].clone()
        flat = gradient.detach().view(-1)
        return flat[:: max(1, flat.numel() // _COORDINATES)][:_COORDINATES].clone()

    def changes(self) -> int | None:
        """Return how often gradients were written since, all alike; None where that is not seen."""
        counts = set()
        for name, (same, version) in self._stamps.items():
            if name not in self._picked:
                continue
            gradient = self._parameters[name].grad
            there = gradient is not None and id(gradient) == same
            counts.add(gradient._version - version if there else None)
        return counts.pop() if len(counts) == 1 else None

    def lost(self, optimizer: Any) -> dict[str, Any] | None:
        """Return `left` of `arrived`: whose gradients were left, and of those, whose are gone.

        Of the parameters that the optimizer itself has: what another steps with may be zeroed.
        """
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        mine = [n for n, p in self._parameters.items() if n in self._seen and id(p) in own]
        if not mine:
            return None
        now = {n: self._parameters[n].grad for n in mine}
        some = {n: None if g is None else self._some(n, g) for n, g in now.items()}
        flags = []
        for name in mine:
            before, after = self._seen[name], some[name]
            was = (before != 0).any()
            if now[name] is not None and after is None:
                gone = torch.zeros_like(was)  # of another kind: not known
            else:
                gone = was if after is None else was & ~(after != 0).any().to(was.device)
            flags.append(torch.stack([was, gone]))
        seen = _read(flags)
        names = [n for n, (_, gone) in zip(mine, seen) if gone]
        return {
            "tensors": int(sum(was for was, _ in seen)),
            "gone": names[:_NAMES],
            "n_gone": len(names),
        }

    def facts(self, divisor: float) -> dict[str, Any] | None:
        """Return `layers` of `arrived`: per tensor, what was left and what arrived."""
        pairs, dtypes = {}, {}
        for name, before in self._seen.items():
            if name not in self._picked:
                continue
            gradient = self._parameters[name].grad
            now = None if gradient is None else self._some(name, gradient)
            if now is None or now.shape != before.shape or now.device != before.device:
                continue
            pair = torch.stack([before, now])
            if name == self._rows:  # by what has arrived, which is the same on all ranks
                at = now.nonzero().flatten()
                pair = pair[:, at[evenly_spaced(len(at), _COORDINATES, at.device)]]
            if pair.numel():
                pairs[name], dtypes[name] = to_float64(pair), before.dtype
        found = {}
        for name, (before, now) in zip(pairs, _read([*pairs.values()])):
            found[name] = {
                "left": [float(f"{x:.9g}") for x in before],
                "arrived": [float(f"{x / divisor:.9g}") for x in now],
                "dtype": str(dtypes[name]),
            }
        return found or None


def _read(tensors: list[Tensor]) -> list[Any]:
    """Return tensors as numbers, read from their device at once."""
    if len({t.device for t in tensors}) > 1:
        tensors = [t.cpu() for t in tensors]
    if not tensors:
        return []
    flat = torch.cat([t.reshape(-1) for t in tensors]).cpu().split([t.numel() for t in tensors])
    return [part.view(t.shape).tolist() for part, t in zip(flat, tensors)]


def _plain(found: FoundModel) -> dict[str, Any]:
    """Return the trained parameters whose gradients come to `.grad`, and stay there."""
    records = fsdp2_records(found.model)
    return {
        name: p
        for name, p in found.model.named_parameters()
        if p.requires_grad and p.is_leaf and not hasattr(p, "full_tensor") and id(p) not in records
    }


def _of_all(plain: dict[str, Any]) -> dict[str, Any]:
    """Return trained tensors of all sizes, evenly taken."""
    return {name: plain[name] for name in list(plain)[:: max(1, -(-len(plain) // _MORE))]}


def _of_each_layer(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest trained tensors of each layer, a matrix of each of its parts, the head's.

    Which matrix of a part is another one from layer to layer: queries, keys, values, ...
    """
    layers: dict[str, list[tuple[int, str, Any]]] = {}
    for name, p in plain.items():
        layer = _LAYER.match(name)
        key = layer.group(1) if layer else ""
        layers.setdefault(key, []).append((p.numel(), name, p))
    keys = list(layers)
    picked: dict[str, Any] = {}
    for number, key in enumerate(keys[:: max(1, -(-len(keys) * OF_EACH // _TENSORS))]):
        small = sorted(layers[key], key=lambda one: one[:2])[:OF_EACH]
        parts: dict[str, list[tuple[int, str, Any]]] = {}
        for one in layers[key]:
            if key and one[2].dim() > 1:
                parts.setdefault(one[1].removeprefix(f"{key}.").split(".")[0], []).append(one)
        matrices = [part[number % len(part)] for part in [*parts.values()][:_PARTS]]
        picked.update((name, p) for _, name, p in (*small, *matrices))
    return picked
