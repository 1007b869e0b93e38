"""The output of a run while it trains."""

import io
import sys

import pytest

from vtool.training.display import Display

METRICS = {
    **{"step": 1, "loss": 1.5, "lr": 1e-3, "grad_norm": 2.0, "tokens": 100},
    **{"distinct_samples": 7, "data_share": 0.0},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_above_the_panel_leaves_no_marks_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is printed draws the panel anew, in the way that it is printed itself."""
    monkeypatch.setattr(sys, "stdout", output := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with Display(0, 2) as display:
        display.step(METRICS, 1.0)
        display.say("rows: [bold]a[/bold] and [/] and C:[dim]")
    printed = output.getvalue()
    assert "rows: [bold]a[/bold] and [/] and C:[dim]" in printed
    assert "distinct samples" in printed, "the panel was drawn"
    assert printed.count("[bold]") == 1
    assert printed.count("[dim]") == 1
