"""The spans of one training step: named for the tool that records, and timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.profiler import record_function

from vtool.devices.profiling import Range, synchronize

STEP_SPAN = "train_batch"
"""The span of a step as a whole; what is in none of its parts is its `other`."""
PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint")
SPAN_COLORS = {
    STEP_SPAN: "grey",
    "data": "terrible",
    "forward": "good",
    "backward": "thread_state_runnable",
    "optimizer": "bad",
    "evaluation": "rail_idle",
    "checkpoint": "yellow",
}
"""The color of each span in a trace, by the names of the Trace Event Format (`cname`)."""


class StepTimer:
    """Names and times the spans of one step.

    A span's time is what is spent in it and in no span inside of it, so that the spans of a step
    add up to the step. The device is waited for at each edge: work that was queued in one span is
    not counted in the next.
    """

    def __init__(self, device: torch.device, ranges: Range | None) -> None:
        self._device, self._ranges = device, ranges
        self._open: list[str] = []
        self._since = 0.0
        self.spent: dict[str, float] = {}
        """Seconds by span."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a span, and name it for the tools; see `vtool.engines.spans.Span`."""
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
