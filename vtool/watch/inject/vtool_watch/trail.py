"""Notes trained weights before and behind each step: something may undo a step in between."""

from __future__ import annotations

from typing import Any

from .digests import checksum, digests
from .model import Found, local

TENSORS, ELEMENTS, STEPS = 64, 1 << 16, 8
"""Only tensors that are small enough to be read whole: of a part of an embedding's rows, others
may be put back on purpose."""


class Trail:
    """Digests of small trained tensors, over steps that are looked at one after another."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, str]] = {}
        self._behind: tuple[int, dict[str, str]] = -1, {}

    def before(self, step: int, found: Found, optimizer: Any) -> dict[str, Any] | None:
        """Return `undone` of `arrived`: to before which step the last one was undone.

        EMA weights that were swapped in and out again, and adapters that were merged and unmerged,
        leave no trace: what is trained is as the last step left it.
        """
        now = self._before[step] = _digests(found, optimizer)
        for old in list(self._before)[:-STEPS]:
            del self._before[old]
        last, behind = self._behind
        if last != step - 1 or last not in self._before:
            return None
        was = self._before[last]
        moved = [n for n in now if n in behind and n in was and behind[n] != was[n]]
        if len(moved) < 3:
            return None
        to = None
        if all(now[n] != behind[n] for n in moved):
            earlier = [
                k
                for k, then in self._before.items()
                if k < step and all(then.get(n) == now[n] for n in moved)
            ]
            to = max(earlier, default=None)
        return {"to": to, "tensors": len(moved)}

    def behind(self, step: int, found: Found, optimizer: Any) -> None:
        """Note what a step has made."""
        self._behind = step, _digests(found, optimizer)


def _digests(found: Found, optimizer: Any) -> dict[str, str]:
    try:
        return _digests_of(found, optimizer)
    except Exception:  # of weights of another kind nothing is said
        return {}


def _digests_of(found: Found, optimizer: Any) -> dict[str, str]:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    some = {}
    for name, p in found.model.named_parameters():
        if id(p) not in own:
            continue
        if hasattr(p, "ds_tensor") or getattr(p, "_fsdp_flattened", False):
            return {}  # pieces that come and go
        part = local(p)
        if 0 < part.numel() <= ELEMENTS:
            some[name] = part
    names = list(some)[:: max(1, -(-len(some) // TENSORS))]
    return dict(zip(names, digests([checksum(some[name]) for name in names])))
