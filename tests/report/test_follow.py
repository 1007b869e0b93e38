import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from vtool.diagnostics import Findings
from vtool.report.follow import Tail, follow, panel, sparkline
from vtool.report.run_files import read_run


class Run:
    """A run that writes its metrics in two parts, and then its result, one part a pause."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_bytes()
        cut = lines.index(b'"loss"', len(lines) // 2)  # in the middle of a line
        result = folder / "result.json"
        self.parts = [(metrics, lines[cut:]), (result, result.read_bytes())]
        metrics.write_bytes(lines[:cut])
        result.unlink()

    def pause(self, _: float) -> None:
        path, content = self.parts.pop(0)
        with path.open("ab") as stream:
            stream.write(content)


def test_without_a_terminal_each_line_of_the_metrics_is_a_line(run_folder: Path) -> None:
    run, output = Run(run_folder), io.StringIO()
    follow(run_folder, Console(file=output, width=40), run.pause)
    lines = output.getvalue().splitlines()
    steps = [line for line in lines if line.startswith("step")]
    assert len(steps) == 44, "the line that was half written at first is there once, and whole"
    assert steps[0] == "step 1  loss 3  grad_norm 4  lr 0.00195  seconds 0.1"
    assert (
        steps[-1]
        == "step 40  validation_nll 0.1  validation_exact_match 0.8  validation_samples 50"
    )
    assert "digits: finished" in lines
    assert "Test exact match: 83.3 % (10 of 12 rows; 95 % interval 55.2 to 95.3 %)" in lines
    assert "\x1b" not in output.getvalue()


def test_in_a_terminal_there_is_a_panel(run_folder: Path) -> None:
    run, output = Run(run_folder), io.StringIO()
    follow(run_folder, Console(file=output, width=100, force_terminal=True), run.pause)
    assert "40 of 40" in output.getvalue()
    assert "loss, log scale" in output.getvalue()
    assert output.getvalue().count("\x1b[?25l") == output.getvalue().count("\x1b[?25h"), (
        "the cursor is shown again"
    )


def test_the_panel_says_when_nothing_happens_and_knows_runs_without_a_step(
    run_folder: Path,
) -> None:
    for name in ("metrics.jsonl", "result.json"):
        (run_folder / name).unlink()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(panel(read_run(run_folder), silent=95))
    text = console.export_text()
    assert "0 of 40" in text
    assert "no new step for 95 s" in text


def test_metrics_that_are_cut_back_are_read_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.new_lines() == ([], False)
    path.write_text("one\ntwo\nthr", encoding="utf-8")
    assert tail.new_lines() == (["one", "two"], False)
    shutil.copy(path, tmp_path / "other")
    (tmp_path / "other").write_text("one\ntwo\nTHREE\n", encoding="utf-8")
    (tmp_path / "other").replace(path)
    assert tail.new_lines() == (["one", "two", "THREE"], True)
    path.write_text("one\n", encoding="utf-8")
    assert tail.new_lines() == (["one"], True)
    assert tail.new_lines() == ([], False)


def test_sparkline_spans_the_values_and_shows_gaps() -> None:
    assert sparkline([1, 8, float("nan"), 4.5]) == "▁█ ▅"
    assert sparkline([2, 2]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(value) for value in range(1000)])) == 48


def test_a_folder_without_a_run_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Findings, match="not-a-run"):
        follow(tmp_path, Console(file=io.StringIO()))


def test_text_in_a_run_is_not_markup(run_folder: Path) -> None:
    (run_folder / "config.yaml").write_text("run: {name: '[red]x[/nope]'}\n", encoding="utf-8")
    output = io.StringIO()
    follow(run_folder, Console(file=output, width=100, force_terminal=True))
    assert (
        json.loads((run_folder / "result.json").read_text(encoding="utf-8"))["status"]
        in output.getvalue()
    )


def test_a_run_that_nobody_trains_any_more_is_not_waited_for(run_folder: Path) -> None:
    (run_folder / "result.json").unlink()
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        " print('held', flush=True); sys.stdin.read()"
    )
    pauses = 0
    with subprocess.Popen(
        [sys.executable, "-c", hold, run_folder / ".lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == "held\n"
        assert read_run(run_folder).running

        def pause(_: float) -> None:
            nonlocal pauses
            pauses += 1
            training.kill()
            training.wait()

        output = io.StringIO()
        follow(run_folder, Console(file=output, width=100), pause)
    assert pauses == 1
    assert "digits: stopped" in output.getvalue()


@pytest.mark.parametrize("kind", ["pipe", "40 GiB"])
def test_metrics_that_never_end_are_not_waited_for(run_folder: Path, kind: str) -> None:
    metrics, output = run_folder / "metrics.jsonl", io.StringIO()
    if kind == "pipe":
        metrics.unlink()
        os.mkfifo(metrics)
    else:
        os.truncate(metrics, 40 * 2**30)
    follow(run_folder, Console(file=output, width=40), lambda _: None)
    assert "step 1 " not in output.getvalue()
