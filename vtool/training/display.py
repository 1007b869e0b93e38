"""The live panel on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

# Seconds between plain lines: enough to see that a run is alive, and a log of days that can still
# be read.
PLAIN_EVERY = 5.0
# The share of the time, spent waiting for data, from which on it is displayed.
WORTH_SAYING = 0.1


class Display:
    """Prints to standard output. `step` is cheap: it is called in the training loop."""

    def __init__(self, start: int, total: int, *, silent: bool = False) -> None:
        self.console = Console(highlight=False, quiet=silent)
        self.total = total
        self.printed = 0.0
        self.speed: float | None = None
        self.waiting = 0.0
        self.live: Live | None = None
        self.progress = Progress(
            TextColumn("step"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.progress.add_task("training", total=total, completed=start)
        if self.console.is_terminal and not silent:
            self.live = Live(self.progress, console=self.console, refresh_per_second=5)

    def __enter__(self) -> "Display":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def step(self, metrics: Mapping[str, Any], step_seconds: float) -> None:
        """Show a step's metrics."""
        speed = metrics["tokens"] / step_seconds
        first = self.speed is None
        self.speed = speed if self.speed is None else 0.9 * self.speed + 0.1 * speed
        share = metrics["data_share"]
        self.waiting = share if first else 0.9 * self.waiting + 0.1 * share
        self.progress.update(self.task, completed=metrics["step"])
        if self.live:
            self.live.update(self._panel(metrics))
        elif time.monotonic() - self.printed >= PLAIN_EVERY or metrics["step"] == self.total:
            self.printed = time.monotonic()
            remaining = self.progress.tasks[0].time_remaining
            shown = self._shown(metrics) | (
                {"ETA": str(timedelta(seconds=round(remaining)))} if remaining else {}
            )
            self.say(
                f"step {metrics['step']}/{self.total}  "
                + "  ".join(f"{name} {value}" for name, value in shown.items())
            )

    def say(self, text: str) -> None:
        """Print a line; above the panel, where there is one."""
        # not markup=False, which would hold for the panel beneath, drawn anew with it
        self.console.print(Text(text), soft_wrap=True)
        sys.stdout.flush()

    def _shown(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        return {
            "loss": f"{metrics['loss']:.4f}",
            "lr": f"{metrics['lr']:.2e}",
            "grad norm": f"{metrics['grad_norm']:.3f}",
            "tokens/s": f"{self.speed:,.0f}",
            "distinct samples": f"{metrics['distinct_samples']:,}",
            **({"waiting for data": f"{self.waiting:.0%}"} if self.waiting >= WORTH_SAYING else {}),
        }

    def _panel(self, metrics: Mapping[str, Any]) -> Table:
        numbers = Table.grid(padding=(0, 2))
        shown = self._shown(metrics)
        numbers.add_row(*(Text(name, "dim") for name in shown))
        numbers.add_row(*(Text(value, "bold") for value in shown.values()))
        panel = Table.grid()
        panel.add_row(numbers)
        panel.add_row(self.progress)
        return panel
