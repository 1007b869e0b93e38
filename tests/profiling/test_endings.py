"""Whole runs, through the command, that end badly for their profile:

a full disk, a dead rank, a Ctrl-C.
"""

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.profiling.runs import TORCH, annotations, break_rules, opened, write
from tests.runs import read_lines, without_times
from tests.training.test_resume import command, run, start_and_wait_for
from vtool.training.own_folder import write_marker

LONG = (
    "profiler=torch",
    "profiler.profile_interval=[3,40]",
    "train.steps=40",
    "checkpoint.every_steps=null",
    "evaluation.every_steps=null",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    (tmp_path / "validation.jsonl").write_text((tmp_path / "rows.jsonl").read_text())
    return tmp_path


def files(run_folder: Path) -> list[str]:
    return sorted(path.name for path in (run_folder / "profile").iterdir())


@pytest.mark.full
def test_a_disk_without_room_for_the_trace_costs_the_trace_alone(folder: Path) -> None:
    """No file may be larger than 14 MB:

    a checkpoint's are smaller, and what torch writes before it is compressed is larger.
    """
    plain = run(*command(folder, "plain", 1))
    assert plain.returncode == 0, plain.stderr
    limit = 14 * 10**6
    profiled = subprocess.run(
        command(folder, "profiled", 1, "profiler=torch", "profiler.profile_interval=[3,6]"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert profiled.returncode == 1, profiled.stderr
    assert profiled.stderr.count("error[profile-missing VT820]") == 1, profiled.stderr
    assert "rank-0-steps-3-6.trace.json.gz: torch could not write it" in profiled.stderr
    assert files(folder / "profiled") == [
        "rank-0-steps-3-6.kernels.csv",
        "rank-0-steps-3-6.kernels.txt",
        "summary.json",
    ]
    (interval,) = json.loads((folder / "profiled/profile/summary.json").read_text())["intervals"]
    assert sum(interval["ranks"]["0"]["split"].values()) > 0
    assert interval["ranks"]["0"]["mfu"] is None, "of attention it is the trace that has the FLOPs"
    checks = json.loads((folder / "profiled/result.json").read_text())["checks"]
    assert (checks["profile-missing"], checks["profiler-failed"]) == ("failed", "passed")
    assert (folder / "profiled/report.html").exists()
    for name in ("model", "optimizer", "progress"):
        one, other = (
            load_file(folder / made / f"checkpoints/step-000008/{name}.safetensors")
            for made in ("profiled", "plain")
        )
        assert all(bool((one[key] == other[key]).all()) for key in other)
    lines = [
        without_times(read_lines(folder / made / "metrics.jsonl")) for made in ("profiled", "plain")
    ]
    assert lines[0] == lines[1]


@pytest.mark.full
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_rank_that_is_killed_inside_the_interval_is_named_with_its_files_and_the_others_are_kept(
    folder: Path, victim: int
) -> None:
    process = start_and_wait_for(4, folder / "run", *command(folder, "run", 2, *LONG))
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert output.count(f"error[rank-failed VT809]: rank {victim} ended with SIGKILL") == 1
    assert output.count("error[") == 2, output
    (missing,) = [
        line for line in output.splitlines() if line.startswith("error[profile-missing VT820]")
    ]
    for ending in ("trace.json.gz", "kernels.txt", "kernels.csv"):
        assert f"rank-{victim}-steps-3-40.{ending}" in missing
    assert f"rank-{1 - victim}" not in missing
    assert "Traceback" not in output, "the other rank's lost connection is not what went wrong"
    (trace,) = (folder / "run/profile").glob(f"rank-{1 - victim}-*.trace.json.gz")
    assert break_rules(opened(trace)) == []
    assert annotations(opened(trace), "ProfilerStep#3")
    (interval,) = json.loads((folder / "run/profile/summary.json").read_text())["intervals"]
    assert list(interval["ranks"]) == [str(1 - victim)]


def ranks_of(process: "subprocess.Popen[Any]") -> list[int]:
    """The processes of the ranks, by rank: torchrun's agent starts them in this order."""
    children = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    return sorted(
        pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


@pytest.mark.soak
def test_a_rank_that_is_killed_before_the_interval_had_promised_nothing_yet(folder: Path) -> None:
    later = [word.replace("[3,40]", "[30,40]") for word in LONG]
    process = start_and_wait_for(2, folder / "run", *command(folder, "run", 2, *later))
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert output.count("error[") == 1, output
    assert "rank-failed" in output


@pytest.mark.soak  # without the command: tests/profiling/test_profiler.py
@pytest.mark.parametrize("nproc", [1, 2])
def test_ctrl_c_inside_the_interval_writes_what_was_recorded_and_the_command_continues(
    folder: Path, nproc: int
) -> None:
    process = start_and_wait_for(4, folder / "run", *command(folder, "run", nproc, *LONG))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    last = read_lines(folder / "run/metrics.jsonl")[-1]["step"]
    assert process.returncode == 130, output
    assert (
        "warning[profile-cut-short VT822]: the run ended before profiler.profile_interval [3, 40]"
        f" had: steps 3 to {last} are" in output
    )
    for rank in range(nproc):
        trace = opened(folder / f"run/profile/rank-{rank}-steps-3-{last}.trace.json.gz")
        assert [one["name"] for one in annotations(trace, "ProfilerStep#")] == [
            f"ProfilerStep#{step}" for step in range(3, last + 1)
        ]


@pytest.mark.full
def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step(folder: Path) -> None:
    (folder / "run").mkdir()
    write_marker(folder / "run")  # a run's own folder
    (folder / "run/profile").write_text("a file is in the way")
    refused = run(*command(folder, "run", 1, *TORCH))
    assert refused.returncode == 1
    assert "run-folder-unwritable VT801" in refused.stderr
    assert not (folder / "run/metrics.jsonl").exists()
