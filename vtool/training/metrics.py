"""The lines of metrics.jsonl: JSON objects in full precision, written by rank 0."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vtool.contents import small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.training.own_folder import open_own

LARGEST_METRICS = 2**29
"""Bytes of metrics.jsonl that are read: the lines of some millions of steps."""


def append(path: Path, metrics: Mapping[str, Any]) -> None:
    """Append a line, whole and at once.

    A reader that follows the file sees it now; a crash cuts off the last line at most.

    Raises:
        Findings: `run-folder-unwritable`, as on a full disk.
    """
    try:
        with open(path, "a", opener=open_own) as file:
            file.write(json.dumps(metrics) + "\n")
    except OSError as error:
        raise Findings(
            Diagnostic("run-folder-unwritable", f"{path}: {error.strerror}", parameter="run.dir")
        ) from error


def read_metric_lines(path: Path) -> list[str]:
    """Return the lines that there are, each with its line break; none without the file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = small_file(path, LARGEST_METRICS).decode(errors="replace")
    except FileNotFoundError:
        return []
    # not `splitlines`, which also cuts at characters that JSON allows inside a string
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [text.rpartition("\n")[2]] * (
        not text.endswith("\n") and bool(text)
    )


def step_of_line(line: str) -> float:
    """Return the step of a line; infinity where it is damaged, as one cut off in the middle."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
    # neither true, which is a 1, nor a number so large that no step is
    return float(step) if type(step) is int and 0 <= step < 2**53 else math.inf


def what_is_lost(
    lines: Sequence[str], steps: Sequence[int], evaluated: Collection[int] = ()
) -> str | None:
    """Return which lines a run's metrics lack or have damaged; None if all are there.

    A line that is cut off at the end, behind the steps, is what a crash leaves.

    Args:
        lines: of metrics.jsonl.
        steps: those that must be there.
        evaluated: those that the validation rows must have a line of as well.
    """
    trained: set[float] = set()
    validated: set[float] = set()
    twice: set[float] = set()
    damaged: list[int] = []
    for number, line in enumerate(lines, 1):
        step = step_of_line(line)
        if math.isinf(step):
            damaged.append(number)
        else:
            lines_of = validated if "validation_nll" in json.loads(line) else trained
            if step in lines_of:
                twice.add(step)
            lines_of.add(step)
    if damaged and damaged[-1] == len(lines):
        damaged.pop()
    parts = [
        f"{what} {_ranges(missing)}"
        for what, missing in (
            ("no line of step", [step for step in steps if step not in trained]),
            ("no line of the evaluation after step", sorted(set(evaluated) - validated)),
            ("more than one line of step", [step for step in steps if step in twice]),
            ("damaged: line", damaged),
        )
        if missing
    ]
    return "; ".join(parts) or None


def _ranges(numbers: Sequence[int]) -> str:
    """Return `3, 5-7`; the first ten of many."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in found[:10]]
    return ", ".join([*shown, *(["…"] if len(found) > 10 else [])])
