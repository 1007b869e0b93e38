"""Compares a pass with one of the same ids without gradients: a reference's, by the same model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .learnt import PassRecord
from .model import is_recorded
from .places import evenly_spaced

_PLACES, _PASSES = 512, 64
"""Places that are compared, and passes of a step: answers may be generated in between."""


class TwinPass:
    """A pass with gradients, and one of the same ids without: whichever comes first is kept."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor] | None = None
        self._passes = 0

    def forget(self) -> None:
        """Drop what was kept, at the end of a step."""
        self._last, self._passes = None, 0

    def hook(self, capture: Any) -> Any:
        """Return a hook of the backbone for passes without gradients."""
        from .capture import Hook, is_in_backward

        def run(*given: Any) -> None:
            try:
                if not capture.looking or torch.is_grad_enabled() or self._passes >= _PASSES:
                    return
                _, args, kwargs, output = given  # a hook that was just removed gets no kwargs
                if torch.jit.is_tracing() or is_recorded() or is_in_backward():
                    return
                ids = kwargs.get("input_ids", args[0] if args else None)
                hidden = getattr(output, "last_hidden_state", None)
                if isinstance(ids, Tensor) and isinstance(hidden, Tensor):
                    self._passes += 1
                    self._without(ids, hidden, capture.records)
            except Exception as error:
                capture._fail("twin", error)

        return Hook(run)

    def _without(self, ids: Tensor, hidden: Tensor, records: list[PassRecord]) -> None:
        if hidden.dim() != 3 or hidden.shape[:2] != ids.shape or ids.shape[1] < 2:
            return
        states = _some(hidden)
        record = records[-1] if records else None
        if record is not None and record.some is not None and _is_of(record, ids):
            if record.apart is None:
                record.apart = _apart(states, record.some)
            return
        self._last = ids.detach().clone(), states

    def note(self, record: PassRecord, hidden: Tensor) -> None:
        """Keep some states of a pass with gradients, and compare them with those kept before."""
        if hidden.dim() != 3 or record.seen is None:
            return
        record.some = _some(hidden)
        last, self._last = self._last, None
        if last is not None and _is_of(record, last[0]):
            record.apart = _apart(last[1], record.some)


def _is_of(record: PassRecord, ids: Tensor) -> bool:
    seen = record.seen.ids if record.seen is not None else None
    return seen is not None and seen.shape == ids.shape and torch.equal(seen, ids)


def _some(hidden: Tensor) -> Tensor:
    flat = hidden.detach().flatten(0, -2)
    return flat[evenly_spaced(len(flat), _PLACES, flat.device)].clone()


def _apart(theirs: Tensor, own: Tensor) -> Tensor:
    left: Tensor = (theirs.float() - own.float()).norm()
    apart: Tensor = left / own.float().norm().clamp_min(1e-30)
    return apart
