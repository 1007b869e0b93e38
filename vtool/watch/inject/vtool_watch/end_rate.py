"""Follows a learning rate of 0 from the steps that are looked at to the end of the run."""

from __future__ import annotations

import weakref
from typing import Any

from .alive import as_steps, schedule_of


class RateFollower:
    """Counts the steps without a learning rate, for as long as no step has one."""

    def __init__(self) -> None:
        self._zero: int | None = 0
        """Steps from the first on without a rate; None once one had some."""
        self._schedule: Any = None
        self._kind: str | None = None
        self._scheduled: int | None = None

    def look(self, optimizer: Any) -> dict[str, Any] | None:
        """Return `schedule` of `stepped`: the schedule of a rate that is 0, None for any other."""
        if not _is_zero(optimizer):
            return None
        schedule = schedule_of(optimizer)
        if schedule is None:
            return None
        self._schedule, self._kind = weakref.ref(schedule), type(schedule).__name__
        return {"kind": self._kind, "steps": as_steps(schedule)}

    def count(self, optimizer: Any) -> None:
        """Count a step, of those that are not looked at too: nothing waits for it."""
        if self._zero is None:
            return
        if not _is_zero(optimizer):
            self._zero = None
            return
        self._zero += 1
        schedule = self._schedule and self._schedule()
        if schedule is not None:
            self._scheduled = as_steps(schedule)

    def fact(self, steps: int) -> dict[str, Any] | None:
        """Return `rate_ended`, where no step had a rate."""
        if not self._zero or self._zero < steps:
            return None
        return {"steps": steps, "kind_of_schedule": self._kind, "scheduled": self._scheduled}


def _is_zero(optimizer: Any) -> bool:
    rates = [group.get("lr") for group in optimizer.param_groups]
    try:
        return bool(rates) and all(rate is not None and float(rate) == 0 for rate in rates)
    except (TypeError, ValueError, RuntimeError):
        return False
