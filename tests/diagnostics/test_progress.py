"""No silence above seconds, and not a line of a command that is short."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vtool.diagnostics import progress
from vtool.diagnostics.progress import tick, working


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    monkeypatch.delenv("RANK", raising=False)


def _until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does; a busy machine may take its time."""
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert true()


def test_a_long_task_reports_its_progress_again_and_again() -> None:
    lines: list[str] = []
    with working("auditing", lines.append, counts="rows"):
        tick(1_000, 4_000, "rows")
        tick(3, 5, "proofs")  # of something inside, which counts other things
        _until(lambda: len(lines) >= 2)
    assert re.fullmatch(r"auditing, 1,000 of 4,000 rows, \d+ s, about \d+ s left", lines[0])
    before = len(lines)
    time.sleep(0.15)
    assert len(lines) == before


def test_an_hour_of_waiting_takes_fewer_than_a_hundred_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    waits = [progress.FIRST_SECONDS]
    while sum(waits) < 3600:
        waits.append(progress.next_wait(waits[-1]))
    assert waits[:3] == [2, 5, 7.5]
    assert max(waits) == 60
    assert len(waits) < 100


def test_a_short_task_is_silent_and_of_several_the_innermost_is_reported() -> None:
    lines: list[str] = []
    with working("short", lines.append):
        pass
    assert lines == []
    with working("outer", lines.append), working("inner", lines.append):
        lines.clear()  # on a busy machine the outer one has been alone for long
        _until(lambda: len(lines) >= 2)
    assert {line.partition(",")[0] for line in lines} == {"inner"}


def test_once_the_inner_task_has_ended_the_outer_one_is_reported() -> None:
    lines: list[str] = []
    with working("outer", lines.append, counts="rows"):
        with pytest.raises(KeyError), working("inner", lines.append):
            raise KeyError
        tick(1, 2, "rows")
        lines.clear()  # on a busy machine the outer one was reported before the inner one began
        _until(lambda: bool(lines))
    assert lines[0].startswith("outer, 1 of 2 rows, ")
    tick(2, 2, "rows")  # of nothing


def test_other_ranks_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29500")
    lines: list[str] = []
    with working("outer", lines.append):
        time.sleep(0.15)
    assert lines == []


@pytest.mark.parametrize(
    "command", [("verify", "digits", "--fast"), ("validate-config", "digits", "--live")]
)
def test_a_long_command_says_before_all_else_that_it_has_begun(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "vtool", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    ) as started:
        assert started.stderr is not None
        first = started.stderr.readline()
        started.kill()
    assert first == f"vtool {command[0]}: starting\n"


def test_a_short_one_says_nothing_of_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vtool", "explain", "VT201"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stderr == ""


SLOW = """
import time
from vtool.diagnostics import progress
lines = []
progress.START, progress.EVERY, progress.write_line = 0.01, 0.02, lines.append
progress.announce_start("vtool x")
deadline = time.monotonic() + 60
while len(lines) < 3 and time.monotonic() < deadline:
    time.sleep(0.01)
with progress.working("loading", lambda line: None):
    pass
time.sleep(0.1)
before = len(lines)
time.sleep(0.1)
print(lines[0], lines[1], len(lines) - before, sep="|")
"""


def test_the_start_is_reported_again_while_packages_are_imported(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    done = subprocess.run(
        [sys.executable, "-c", "import slow"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, others = done.stdout.strip().split("|")
    assert first == "vtool x: starting"
    assert re.fullmatch(r"vtool x: importing packages, \d+ s", second)
    assert others == "0", "after the start, tasks report the progress"


LATE = """
import time, types
from vtool.diagnostics import progress

lines, clock, asked = [], [0.0], []
progress.START, progress.EVERY, progress.write_line = 0.01, 0.02, lines.append
progress.time = types.SimpleNamespace(
    monotonic=lambda: asked.append(clock[0]) or clock[0], sleep=time.sleep
)
progress.announce_start("vtool x")
clock[0] = 160.0
while 160.0 not in asked:  # it has seen that nothing is imported
    time.sleep(0.01)
import late
print(lines[1])
"""


def test_the_time_of_an_import_at_the_end_is_not_that_of_the_whole_command(tmp_path: Path) -> None:
    wait = "import __main__, time\nwhile len(__main__.lines) < 2:\n    time.sleep(0.01)\n"
    (tmp_path / "late.py").write_text(wait)
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "vtool x: importing packages, 0 s\n"
