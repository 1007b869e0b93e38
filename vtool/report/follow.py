"""A run watched in the terminal while it trains.

On a terminal it is a panel; elsewhere a line for each line of `metrics.jsonl`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vtool.contents import open_regular
from vtool.report.run_files import (
    LARGEST_RUN_FILE,
    EvaluationLine,
    RunFiles,
    StepLine,
    check_is_run,
    evaluations_of,
    in_training,
    number_in,
    parse_line,
    read_run,
    steps_of,
)
from vtool.report.statistics import smooth, tokens_per_second
from vtool.report.views import headline, status
from vtool.report.words import duration, in_words, percent

_PAUSE = 0.5
_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48
_LAST_STEPS = 20


class Tail:
    """Reads the new lines of a file.

    Whole lines only; from the start again when the file was cut back or replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._read = 0

    def new_lines(self) -> tuple[list[str], bool]:
        """Return the new lines, and whether they begin again from the first one.

        A run that resumes cuts its metrics back to its checkpoint.
        """
        try:
            with open_regular(self.path, LARGEST_RUN_FILE) as stream:
                found = self.path.stat()
                anew = self._read > 0 and (found.st_ino != self._file or found.st_size < self._read)
                self._file, self._read = found.st_ino, 0 if anew else self._read
                stream.seek(self._read)
                content = stream.read()
        except OSError:  # not there yet; what else it is, the end says
            return [], False
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", errors="replace").split("\n")[:-1], anew


def follow(folder: Path, console: Console, pause: Callable[[float], None] = time.sleep) -> None:
    """Show the run until its `result.json` is there, or no process trains in its folder any more.

    Raises:
        Findings: `not-a-run`.
        KeyboardInterrupt: on Ctrl-C.
    """
    check_is_run(folder)
    if console.is_terminal:
        _show_panel(folder, console, pause)
    else:
        for rows, anew in _watch(folder, pause):
            if anew:
                _say(console, "metrics.jsonl begins anew: the run was resumed")
            for row in rows:
                _say(console, line_of(row))
    run = read_run(folder)
    _say(console, f"{run.name}: {status(run)}")
    for stat in headline(run):
        if stat.value:
            _say(console, f"{stat.label}: {stat.value}{f' ({stat.note})' if stat.note else ''}")


def _watch(
    folder: Path, pause: Callable[[float], None]
) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    """Yield the new rows of `metrics.jsonl`, and whether they begin again from the first one.

    Twice a second until the run has ended, one way or the other.
    """
    tail = Tail(folder / "metrics.jsonl")
    while True:
        # Asked before the metrics are read, so that lines written just before the end are not lost.
        done = (folder / "result.json").is_file() or in_training(folder) is False
        lines, anew = tail.new_lines()
        yield [row for line in lines if (row := parse_line(line))], anew
        if done:
            return
        pause(_PAUSE)


def _show_panel(folder: Path, console: Console, pause: Callable[[float], None]) -> None:
    run = read_run(folder)
    steps: list[StepLine] = []
    evaluations: list[EvaluationLine] = []
    changed = time.monotonic()
    with Live(console=console, auto_refresh=False) as live:
        for rows, anew in _watch(folder, pause):
            if anew:
                steps, evaluations = [], []
            if rows:
                changed = time.monotonic()
                steps += steps_of(rows)
                evaluations += evaluations_of(rows)
            run = replace(run, steps=tuple(steps), evaluations=tuple(evaluations))
            live.update(panel(run, silent=time.monotonic() - changed), refresh=True)


def line_of(row: Mapping[str, Any]) -> str:
    """Return a line of `metrics.jsonl` as `step 20  loss 0.312  grad_norm 1.2  lr 0.002`."""
    shown = (
        "step",
        "loss",
        "grad_norm",
        "lr",
        "seconds",
        "data_share",
        "validation_nll",
        "validation_exact_match",
        "validation_samples",
    )
    return "  ".join(
        f"{key} {in_words(value)}" for key in shown if (value := number_in(row, key)) is not None
    )


def panel(run: RunFiles, silent: float) -> RenderableType:
    """Draw the state of a run that has not written a step for `silent` seconds."""
    last = run.steps[-1] if run.steps else None
    planned = run.setting("train.steps")
    total = int(planned) if planned and planned.isdecimal() else None
    losses = [step.loss for step in run.steps if step.loss is not None]
    _, rates = tokens_per_second(run.steps[-_LAST_STEPS:])
    evaluation = run.evaluations[-1] if run.evaluations else None
    step = f"{last.step if last else 0:,}{f' of {total:,}' if total else ''}"
    facts = Table.grid(padding=(0, 3))
    facts.add_row(
        "step", step, "loss", in_words(smooth(losses, _LAST_STEPS)[-1] if losses else None)
    )
    facts.add_row(
        "epoch",
        in_words(last.epoch if last else None),
        "grad norm",
        in_words(last.grad_norm if last else None),
    )
    facts.add_row(
        "time", duration(last.seconds if last else None), "lr", in_words(last.lr if last else None)
    )
    facts.add_row(
        "left", _left(run, total), "tokens/s", in_words(sum(rates) / len(rates) if rates else None)
    )
    if evaluation:
        facts.add_row("validation", f"at step {evaluation.step:,}", "NLL", in_words(evaluation.nll))
        facts.add_row("", "", "exact match", percent(evaluation.exact_match))
    # Of its logarithm: else the first steps leave nothing to see of all the others.
    course = sparkline([math.log(loss) if loss > 0 else math.nan for loss in losses])
    parts: list[RenderableType] = [facts, Text(f"\n{course}  loss, log scale", style="cyan")]
    if total:
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(
            ProgressBar(total=total, completed=last.step if last else 0, width=_SPARK_WIDTH)
        )
        parts = [bar, Text(), *parts]
    if silent > 30:
        parts.append(Text(f"no new step for {duration(round(silent))}", style="yellow"))
    return Panel(Group(*parts), title=Text(run.name), expand=False, padding=(1, 2))


def _left(run: RunFiles, total: int | None) -> str:
    """Return how long the rest takes, at the pace of the last steps."""
    recent = run.steps[-_LAST_STEPS:]
    if total is None or len(recent) < 2 or recent[0].seconds is None or recent[-1].seconds is None:
        return "—"
    pace = (recent[-1].seconds - recent[0].seconds) / max(1, recent[-1].step - recent[0].step)
    return duration(round(max(0, total - recent[-1].step) * pace))


def sparkline(values: list[float]) -> str:
    """Draw values as one line of text; a gap where a stretch has no finite value."""
    buckets = min(_SPARK_WIDTH, len(values))
    stretches = [
        values[index * len(values) // buckets : (index + 1) * len(values) // buckets]
        for index in range(buckets)
    ]
    finite = [[value for value in stretch if math.isfinite(value)] for stretch in stretches]
    means = [sum(stretch) / len(stretch) if stretch else None for stretch in finite]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_SPARK) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _SPARK[round((mean - low) * scale)] for mean in means)


def _say(console: Console, line: str) -> None:
    # No markup, highlighting or wrapping: a line of the run is a line for `grep`.
    console.print(line, markup=False, highlight=False, soft_wrap=True)
