"""Decides with the other ranks whether a collective is entered: all of them, or none.

A rank whose watch failed, or has none, must not leave the others waiting in a collective. So each
rank leaves its vote in the store that torch.distributed was started with, and looks for the votes
of the others for a limited time. Whoever has seen all of them, or has waited long enough, writes
the decision, and the first one written holds for all (`compare_set`): no two can decide
differently. Nothing comes between a rank's reading of the decision and the collective.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

YES, NO, LATE = "yes", "no", "late"


class Agreement:
    """Votes of some ranks, about one question at a time."""

    def __init__(self, store: Any, rank: int, wait: float, name: str = "vtool_watch") -> None:
        self.store, self.rank, self.wait, self.name = store, rank, wait, name
        self.over: str | None = None
        """The reason why nothing is voted on any more."""

    def decide(self, question: str, ranks: Sequence[int], ready: bool) -> bool:
        """Return the decision of all ranks: whether each of them is there and ready."""
        if self.over is not None:
            return False
        try:
            decision = self._decide(f"{self.name}/{question}", ranks, ready)
        except Exception as error:  # the store is gone, or knows no compare_set
            self.over = f"the ranks' store cannot be used: {error!r}"[:200]
            return False
        if decision == LATE:
            self.over = f"not every rank answered within {self.wait:g} s: one has no watch"
        return decision == YES

    def _decide(self, question: str, ranks: Sequence[int], ready: bool) -> str:
        decided = f"{question}/decision"
        self.store.set(f"{question}/{self.rank}", YES if ready else NO)
        missing = {f"{question}/{rank}" for rank in ranks}
        end, pause = time.monotonic() + self.wait, 0.002
        proposal = NO if not ready else None
        while proposal is None:
            if self.store.check([decided]):
                return self._text(self.store.get(decided))
            for key in sorted(missing):
                if not self.store.check([key]):
                    break
                if self._text(self.store.get(key)) != YES:
                    proposal = NO
                    break
                missing.discard(key)
            if not missing:
                proposal = YES
            elif proposal is None and time.monotonic() > end:
                proposal = LATE
            elif proposal is None:
                time.sleep(pause)
                pause = min(0.05, 2 * pause)
        return self._text(self.store.compare_set(decided, "", proposal))

    @staticmethod
    def _text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)


def agreement(wait: float, name: str) -> Agreement | None:
    """Return this process's side of the votes, or None where it is alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    return Agreement(store, distributed.get_rank(), wait, name)


def ranks_of(tensor: Any) -> list[int]:
    """Return the ranks that a DTensor's whole is gathered by."""
    return [int(rank) for rank in tensor.device_mesh.mesh.flatten().tolist()]
