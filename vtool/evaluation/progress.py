"""The progress of a command on standard error, with the time that is left."""

import sys
import time
from dataclasses import dataclass, field

_EVERY = 2.0
"""Seconds between lines."""


@dataclass(slots=True)
class Meter:
    """Rows answered, and when the rest will be."""

    total: int
    done: int = 0
    """Rows whose answers were there before."""
    began: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)
    new: int = 0

    def add(self, rows: int) -> None:
        """Count rows, and tell of them every few seconds."""
        self.new += rows
        now = time.monotonic()
        if now - self.told >= _EVERY:
            self.told = now
            print(self.in_words(now - self.began), file=sys.stderr, flush=True)

    def in_words(self, seconds: float) -> str:
        """Return the state after so many seconds."""
        done, rate = self.done + self.new, self.new / seconds if seconds else 0.0
        left = (self.total - done) / rate if rate else 0.0
        return f"  {done:,} of {self.total:,} rows, {rate:.3g} a second, {_time(left)} left"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
