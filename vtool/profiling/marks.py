"""The parts of one step: marked for whoever records, and timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.profiler import record_function

from vtool.devices.profiling import Range, synchronize

WHOLE = "train_batch"
"""The role of a step as a whole; what is in none of its parts is its `other`."""
PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint")
COLOURS = {
    WHOLE: "grey",
    "data": "terrible",
    "forward": "good",
    "backward": "thread_state_runnable",
    "optimizer": "bad",
    "evaluation": "rail_idle",
    "checkpoint": "yellow",
}
"""Names of the Trace Event Format's colours (`cname`)."""


class Marks:
    """Marks and times the parts of one step.

    A part's time is what is spent in it and in no part inside of it, so that the parts of a step
    add up to it. The device is waited for at
    each edge: what it has been given in one part is not counted to the next.
    """

    def __init__(self, device: torch.device, ranges: Range | None) -> None:
        self._device, self._ranges = device, ranges
        self._open: list[str] = []
        self._since = 0.0
        self.spent: dict[str, float] = {}
        """Seconds by role."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """See `vtool.engines.spans.Span`."""
        self._turn()
        self._open.append(name)
        with record_function(name), self._ranges(name) if self._ranges else nullcontext():
            try:
                yield
            finally:
                self._turn()
                self._open.pop()

    def _turn(self) -> None:
        synchronize(self._device)
        now = time.perf_counter()
        if self._open:
            self.spent[self._open[-1]] = self.spent.get(self._open[-1], 0.0) + now - self._since
        self._since = now
