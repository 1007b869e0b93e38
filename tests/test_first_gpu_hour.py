"""`scripts/first-gpu-hour.sh` at its tiny size, on whatever is here."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/first-gpu-hour.sh"
pytestmark = pytest.mark.skipif(
    not SCRIPT.exists(), reason="not run: the script is in a checkout alone"
)


def table(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "first-gpu-hour.json").read_text())["rows"]
    return found


def outcomes(
    folder: Path, rows: dict[str, Callable[[str | None], Iterator[Any]]], minutes: float = 1.0
) -> tuple[dict[str, Any], int]:
    from benchmarks.first_hour.__main__ import exit_status, measure_all

    found = dict(measure_all(rows, "tiny", folder, minutes))
    return {name: (one.state, one.figure) for name, one in found.items()}, exit_status(found)


def good(size: str | None) -> Iterator[Any]:
    from benchmarks.first_hour.outcome import judged

    yield judged(True, f"{size}", number=1)


def raises(size: str | None) -> Iterator[Any]:
    yield from good(size)
    raise ValueError("no room\nfor it")


def dies(size: str | None) -> Iterator[Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from good(size)


def hangs(size: str | None) -> Iterator[Any]:
    yield from good(size)
    time.sleep(600)


def test_a_row_that_raises_or_is_killed_takes_no_other_along(tmp_path: Path) -> None:
    rows = {row.__name__: row for row in (raises, dies, good)}
    found, status = outcomes(tmp_path, rows)
    assert found["raises"] == ("failed", "ValueError: no room; until then: tiny")
    assert found["dies"][0] == "failed"
    assert "killed by SIGKILL: out of memory?" in found["dies"][1]
    assert found["good"] == ("passed", "tiny")
    assert status == 1
    assert "ValueError: no room" in (tmp_path / "raises.log").read_text()


def test_what_was_measured_before_the_time_was_over_is_kept(tmp_path: Path) -> None:
    found, status = outcomes(tmp_path, {"hangs": hangs, "good": good}, minutes=0.02)
    assert found == {
        "hangs": ("not run", "the time was over; until then: tiny"),
        "good": ("not run", "not begun: the time was over"),
    }
    assert status == 2


def test_nothing_measured_is_no_success(tmp_path: Path) -> None:
    from benchmarks.first_hour.__main__ import exit_status
    from benchmarks.first_hour.outcome import Outcome

    assert exit_status({"device": Outcome("not run", "no GPU")}) == 2
    assert exit_status({"device": Outcome("not run", "no GPU"), "one": Outcome("passed", "")}) == 0


@pytest.mark.full
def test_the_whole_table_is_made_on_a_cpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "--out", tmp_path, "--size", "tiny"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(tmp_path)
    looked = {name for name, row in rows.items() if row["state"] == "passed"}
    assert looked >= {"loss", "plan", "waits", "recompute", "engines", "speed"}
    assert rows["device"]["state"] in ("passed", "not run")
    assert all(f"| {name} | {row['state']} |" in done.stdout for name, row in rows.items())
    assert rows["speed"]["numbers"]["packed"]["tokens_per_second"] > 0


@pytest.mark.full
def test_a_signal_ends_it_with_the_table_of_what_was_measured(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [SCRIPT, "--out", tmp_path, "--size", "tiny", "device", "loss", "speed"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert started.stderr is not None
    for line in started.stderr:
        if line.startswith("speed: …"):
            break
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=60)
    assert started.returncode == 2
    assert "| loss | passed |" in out
    assert "| speed | not run | the command was stopped" in out
    assert table(tmp_path)["loss"]["state"] == "passed"


@pytest.mark.full
def test_a_row_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "speeed"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert "no such row: speeed; there are device, attention" in done.stderr
