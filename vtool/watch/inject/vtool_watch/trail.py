"""Notes trained weights before and after each step: something may undo a step in between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .digests import checksum, digests
from .model import FoundModel, local_shard

_TENSORS, ELEMENTS, STEPS, _COORDINATES, _NAMES = 64, 1 << 16, 8, 32, 20
_FOLLOWED = 4
"""Steps that are looked at further where weights were written before some, and not before all."""
"""Only tensors that are small enough to be read whole: some rows of an embedding may be put back on
purpose."""


class WeightTrail:
    """Digests of small trained tensors, over steps that are looked at one after another."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, str]] = {}
        self._behind: tuple[int, dict[str, str]] = -1, {}
        self._was: dict[str, Tensor] = {}
        self._made: dict[str, Tensor] = {}
        """Some coordinates before and after the last step."""
        self._looks = self._writes = 0
        self._to = -1
        """The step up to which weights are followed."""

    def follows(self, step: int) -> bool:
        """Return whether a step that is not looked at is to be followed all the same."""
        return 0 < self._writes < self._looks and step <= self._to

    def before(self, step: int, found: FoundModel, optimizer: Any) -> dict[str, Any] | None:
        """Return `undone` of `arrived`: to before which step the last one was undone.

        EMA weights that were swapped in and out again, and adapters that were merged and unmerged,
        leave no trace: what is trained is as the last step left it.
        """
        now = self._before[step] = _digests(found, optimizer)
        was, made, self._was = self._was, self._made, _coordinates(found, now)
        for old in list(self._before)[:-STEPS]:
            del self._before[old]
        last, behind = self._behind
        if last != step - 1 or last not in self._before:
            return None
        then = self._before[last]
        moved = [n for n in now if n in behind and n in then and behind[n] != then[n]]
        if len(moved) < 3:
            return None
        to = None
        if all(now[n] != behind[n] for n in moved):
            earlier = [
                k
                for k, other in self._before.items()
                if k < step and all(other.get(n) == now[n] for n in moved)
            ]
            to = max(earlier, default=None)
        back = [n for n in moved if now[n] == then[n] != behind[n]]
        written = _written(moved, was, made, self._was) if to is None else None
        if self._to < 0 and written is not None:
            self._to = step + _FOLLOWED
        self._looks, self._writes = self._looks + 1, self._writes + (written is not None)
        return {"to": to, "tensors": len(moved), "back": back[:_NAMES], "written": written}

    def behind(self, step: int, found: FoundModel, weights: dict[str, str]) -> bool | None:
        """Record the digests and some values of the weights that a step has written.

        Return whether it has changed any of them; None where none were recorded before.

        Args:
            weights: the digest of each parameter after the step.
        """
        then = self._before.get(step, {})
        now = {name: weights[name] for name in then if name in weights}
        self._behind, self._made = (step, now), _coordinates(found, now)
        return any(then[n] != now[n] for n in now) if now else None

    def behind_followed(self, step: int, found: FoundModel, optimizer: Any) -> None:
        """Record the weights that a step has written that is followed alone."""
        self.behind(step, found, _digests(found, optimizer))


def _coordinates(found: FoundModel, names: dict[str, str]) -> dict[str, Tensor]:
    """Return some coordinates of the tensors of which digests were taken."""
    some = {}
    for name, p in found.model.named_parameters():
        if name in names:
            flat = local_shard(p).detach().reshape(-1)
            some[name] = flat[:: max(1, len(flat) // _COORDINATES)][:_COORDINATES].cpu().double()
    return some


def _written(
    moved: list[str], was: dict[str, Tensor], made: dict[str, Tensor], now: dict[str, Tensor]
) -> dict[str, Any] | None:
    """Return the change that something other than the step made to the tensors that it moved.

    `share`: the part of the step that is left; `rest`: what this share does not explain.
    """
    known = [n for n in moved if n in was and n in made and n in now]
    others = 0
    for name in known:
        least = 16 * 2.0**-24 * made[name].abs().clamp_min(1e-12)  # SAM's way there and back
        others += bool(((now[name] - made[name]).abs() > least).any())
    if not others:
        return None
    step = torch.cat([made[n] - was[n] for n in known])
    left = torch.cat([now[n] - was[n] for n in known])
    share = float(left @ step) / max(float(step @ step), 1e-300)
    rest = float((left - share * step).norm()) / max(float(step.norm()), 1e-150)
    return {"tensors": others, "of": len(known), "share": share, "rest": rest}


def _digests(found: FoundModel, optimizer: Any) -> dict[str, str]:
    try:
        return _digests_of(found, optimizer)
    except Exception:  # nothing is noted of weights of another kind
        return {}


def _digests_of(found: FoundModel, optimizer: Any) -> dict[str, str]:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    some = {}
    for name, p in found.model.named_parameters():
        if id(p) not in own:
            continue
        if hasattr(p, "ds_tensor") or getattr(p, "_fsdp_flattened", False):
            return {}  # pieces that come and go
        part = local_shard(p)
        if 0 < part.numel() <= ELEMENTS:
            some[name] = part
    names = list(some)[:: max(1, -(-len(some) // _TENSORS))]
    return dict(zip(names, digests([checksum(some[name]) for name in names])))
