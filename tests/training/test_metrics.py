"""The lines of metrics.jsonl: which are there, and which are lost."""

import json
import math
from pathlib import Path

import pytest

from vtool.training.metrics import read_metric_lines, step_of_line, what_is_lost


def lines(*steps: int, evaluated: tuple[int, ...] = ()) -> list[str]:
    made = [{"step": step, "loss": 1.0} for step in steps]
    made += [{"step": step, "validation_nll": 1.0} for step in evaluated]
    return [json.dumps(line) + "\n" for line in made]


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (lines(1, 2, 3, 4, evaluated=(2, 4)), None),
        (lines(1, 2, 3, 4, 5, evaluated=(2, 4)), None),  # a later one is written again
        ([*lines(1, 2, 3, 4, evaluated=(2, 4)), '{"step": 5, "lo'], None),  # a crash's last line
        (lines(1, 4, evaluated=(2, 4)), "no line of step 2-3"),
        ([], "no line of step 1-4; no line of the evaluation after step 2, 4"),
        (lines(1, 2, 3, 4, evaluated=(4,)), "no line of the evaluation after step 2"),
        (["\0\0\n", *lines(1, 2, 3, 4, evaluated=(2, 4))], "damaged: line 1"),
        (["[" * 100_000, *lines(2, 3, 4, evaluated=(2, 4))], "no line of step 1; damaged: line 1"),
        ([*lines(1, 2, 3, evaluated=(2, 4)), "7\n"], "no line of step 4"),
        (lines(1, 2, 2, 3, 4, evaluated=(2, 2, 4)), "more than one line of step 2"),
        (lines(1, 2, 3, 4, 5, 5, evaluated=(2, 4)), None),
    ],
)
def test_what_is_lost_is_named(found: list[str], lost: str | None) -> None:
    assert what_is_lost(found, range(1, 5), (2, 4)) == lost


@pytest.mark.parametrize(
    "step", ["true", "1.0", "1.5", '"1"', "null", "-1", "NaN", "1e999", "9" * 30, "9" * 5000]
)
def test_what_is_no_number_of_a_step_is_damage(step: str) -> None:
    assert step_of_line('{"step": 7}') == 7
    assert math.isinf(step_of_line(f'{{"step": {step}}}'))


def test_metrics_that_never_end_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.write("".join(lines(1, 2)).encode())
        file.truncate(40 * 2**30)
    with pytest.raises(OSError, match="at most 536,870,912 are read"):
        read_metric_lines(tmp_path / "metrics.jsonl")
