"""The progress of a command on standard error, with the time that is left."""

import sys
import time
from dataclasses import dataclass, field

_FIRST, _GROWTH, _MOST = 2.0, 1.5, 60.0
"""Seconds to the first line, their growth from line to line, and the most between two."""


@dataclass(slots=True)
class Meter:
    """Rows answered, and when the rest will be."""

    total: int
    before: int = 0
    """Rows whose answers were there before."""
    began: float = field(default_factory=time.monotonic)
    new: int = 0
    reported_at: float = field(default_factory=time.monotonic)
    wait: float = _FIRST

    def add(self, rows: int) -> None:
        """Count rows, and print a line every few seconds; ever less often as time passes."""
        self.new = min(self.new + rows, self.total - self.before)
        now = time.monotonic()
        if now - self.reported_at >= self.wait:
            self.reported_at, self.wait = now, min(_MOST, self.wait * _GROWTH)
            print(self.in_words(now - self.began), file=sys.stderr, flush=True)

    def in_words(self, seconds: float) -> str:
        """Return the state after so many seconds."""
        done, rate = self.before + self.new, self.new / seconds if seconds else 0.0
        left = f", {_time((self.total - done) / rate)} left" if rate else ""
        return f"  {done:,} of {self.total:,} rows, {rounded(rate)} a second{left}"


def rounded(value: float) -> str:
    """Return a rate with three digits, or as a whole number where it has more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
