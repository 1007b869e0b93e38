"""A run that is killed and started again ends as one that was not:

samples, losses and weights, bit for bit.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.commands import vtool
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, without_times

STEPS, EVERY = 8, 2
PATIENCE = 300  # seconds for a process to end, on a machine that does much else at the time


def command(folder: Path, name: str, nproc: int, *more: str) -> list[str]:
    """Three steps an epoch, the last one smaller, so that a resumed run crosses an epoch's end."""
    overrides = [
        messages(folder / "rows.jsonl"),
        f"data.validation=[{{format:messages,path:'{folder / 'validation.jsonl'}'}}]",
        *(
            "data.global_batch_size=6",
            "data.micro_batch_size=2",
            "data.image={min_pixels:784,max_pixels:3136}",
        ),
        *(
            "train={steps:8,epochs:null}",
            "optim.warmup_steps=2",
            "checkpoint.every_steps=2",
            "checkpoint.keep_last=9",
        ),
        *(
            f"run.dir={folder / name}",
            "evaluation.every_steps=4",
            "evaluation.generate.max_new_tokens=2",
            "device.threads=1",
        ),
        *more,
    ]
    return [
        sys.executable,
        "-m",
        "vtool",
        "train",
        "sft",
        "--no-preflight",
        "rows",
        *overrides,
        "--nproc",
        str(nproc),
    ]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=False)


def start_and_wait_for(
    step: int, folder: Path, *arguments: str, start_new_session: bool = False
) -> subprocess.Popen[str]:
    """Start a run, and return once it has written a step."""
    process = subprocess.Popen(
        arguments,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=start_new_session,
    )
    metrics = folder / "metrics.jsonl"
    while not (
        metrics.exists()
        and any(
            json.loads(line)["step"] >= step
            for line in metrics.read_text().splitlines(True)
            if line.endswith("\n")
        )
    ):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """`kill -9` of a run and of its ranks: nothing is flushed, nothing is printed."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def written(folder: Path) -> dict[str, Any]:
    """Return the results that two runs must share.

    They are every metric but the times, and the bytes of the last weights and counts.
    """
    last = folder / "checkpoints" / f"step-{STEPS:06d}"
    metrics = without_times(read_lines(folder / "metrics.jsonl"))
    return {
        "metrics": metrics,
        **{file.name: file.read_bytes() for file in last.glob("*.safetensors")},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 16, text_only=(1, 2, 9)))
    write_rows(tmp_path / "validation.jsonl", mixed_rows(tmp_path, 3))
    return tmp_path


DISTRIBUTED = "engine.wrap_config.use_distributed_optimizer=true"
SHARED_OUT = [
    pytest.param(2, ("engine=fsdp2",), id="2-fsdp2", marks=pytest.mark.soak),
    pytest.param(2, ("engine=megatron", DISTRIBUTED), id="2-megatron", marks=pytest.mark.soak),
    pytest.param(
        2,
        ("engine=megatron", "engine.parallel.pipeline=2"),
        id="2-megatron-pipeline",
        marks=pytest.mark.soak,
    ),
]
KILLED = [
    (1, ()),
    pytest.param(2, ("checkpoint.asynchronous=true",), marks=pytest.mark.full),
    *SHARED_OUT,
]


@pytest.mark.parametrize(("nproc", "engine"), KILLED)
def test_a_killed_run_ends_as_a_straight_one(
    folder: Path, nproc: int, engine: tuple[str, ...]
) -> None:
    vtool(folder, *command(folder, "straight", nproc, *engine)[3:])
    kill(start_and_wait_for(5, folder / "killed", *command(folder, "killed", nproc, *engine)))
    resumed = vtool(folder, *command(folder, "killed", nproc, *engine)[3:])
    assert "resuming after step" in resumed
    one, other = written(folder / "straight"), written(folder / "killed")
    assert one["metrics"] == other["metrics"]
    assert [line["step"] for line in one["metrics"] if "loss" in line] == list(range(1, STEPS + 1))
    assert {line["epoch"] for line in one["metrics"] if "loss" in line} == {0, 1, 2}
    assert one == other


@pytest.mark.full
@pytest.mark.parametrize("engine", ["fsdp2", pytest.param("megatron", marks=pytest.mark.full)])
def test_a_run_that_was_killed_after_its_last_checkpoint_still_ends(
    folder: Path, engine: str
) -> None:
    """Only the test split is left: its first forward pass is the tower's own."""
    arguments = command(
        folder,
        "run",
        1,
        f"engine={engine}",
        f"data.test=[{{format:messages,path:'{folder / 'validation.jsonl'}'}}]",
        "data.max_overlap_rows=3",
    )[3:]
    vtool(folder, *arguments)
    run = folder / "run"
    answers = (run / "predictions.jsonl").read_bytes()
    for file in ("result.json", "predictions.jsonl"):
        (run / file).unlink()
    assert f"resuming after step {STEPS}" in vtool(folder, *arguments)
    assert (run / "predictions.jsonl").read_bytes() == answers


@pytest.mark.full
def test_another_rank_count_resumes_within_a_rounding_error(folder: Path) -> None:
    assert run(*command(folder, "straight", 1)).returncode == 0
    kill(start_and_wait_for(5, folder / "killed", *command(folder, "killed", 1)))
    assert run(*command(folder, "killed", 2)).returncode == 0
    losses = [
        [line["loss"] for line in read_lines(folder / name / "metrics.jsonl") if "loss" in line]
        for name in ("straight", "killed")
    ]
    assert max(abs(one - other) for one, other in zip(*losses, strict=True)) <= 1e-5


@pytest.mark.full
def test_data_workers_do_not_hold_the_folder_of_a_killed_run(folder: Path) -> None:
    arguments = command(folder, "run", 1, "train.steps=2000", "data.workers=2")
    process = start_and_wait_for(2, folder / "run", *arguments)
    process.kill()
    process.wait()
    reached = read_lines(folder / "run" / "metrics.jsonl")[-1]["step"]
    again = start_and_wait_for(reached + 3, folder / "run", *arguments)
    again.terminate()
    output, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 143, output


@pytest.mark.full
@pytest.mark.parametrize(
    ("seconds", "number", "status"),
    [
        (0.6, signal.SIGTERM, 143),
        (3, signal.SIGINT, 130),
        pytest.param(0.6, signal.SIGINT, 130, marks=pytest.mark.soak),
        pytest.param(3, signal.SIGTERM, 143, marks=pytest.mark.soak),
    ],
)
def test_a_signal_before_the_first_step_ends_the_run_as_one_does(
    folder: Path, seconds: float, number: signal.Signals, status: int
) -> None:
    arguments = command(folder, "run", 2, "train.steps=2000")
    process = subprocess.Popen(
        arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if seconds > 1:  # when its ranks are there, and importing torch
        while b"spawn_main" not in _children(process.pid):
            time.sleep(0.05)
    else:
        time.sleep(seconds)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode in (status, -number), output
    assert "rank-failed" not in output
    # before vtool itself has been imported, it is Python's
    assert "Traceback" not in output or seconds < 1, output


@pytest.mark.full
@pytest.mark.parametrize(
    ("nproc", "number", "status"),
    [
        (1, signal.SIGINT, 130),
        pytest.param(2, signal.SIGTERM, 143, marks=pytest.mark.full),
        pytest.param(2, signal.SIGHUP, 129, marks=pytest.mark.soak),
        pytest.param(2, signal.SIGINT, 130, marks=pytest.mark.soak),
        pytest.param(1, signal.SIGTERM, 143, marks=pytest.mark.soak),
        pytest.param(1, signal.SIGHUP, 129, marks=pytest.mark.soak),
    ],
)
def test_a_signal_lets_the_step_finish_and_says_how_to_resume(
    folder: Path, nproc: int, number: signal.Signals, status: int
) -> None:
    process = start_and_wait_for(
        1,
        folder / "run",
        *command(folder, "run", nproc, "train.steps=2000", "checkpoint.every_steps=null"),
    )
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, output
    steps = [line["step"] for line in read_lines(folder / "run" / "metrics.jsonl")]
    assert f"stopped by {number.name} after step {steps[-1]} of 2000; checkpoint saved" in output
    assert "resume with: vtool train sft rows" in output
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == [
        f"step-{steps[-1]:06d}"
    ]
    assert (folder / "run" / "report.html").exists()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_under_an_outer_torchrun_saves_a_checkpoint(
    folder: Path, number: signal.Signals
) -> None:
    """torchrun passes a Ctrl-C on, which is one request. So does it with a scheduler's signal."""
    arguments = command(folder, "run", 2, "train.steps=2000", "checkpoint.every_steps=null")[3:-2]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    torchrun += ["--shutdown-timeout", "110", "-m", "vtool", *arguments]
    process = start_and_wait_for(1, folder / "run", *torchrun, start_new_session=True)
    if number == signal.SIGTERM:
        process.terminate()
    else:
        os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=PATIENCE)
    steps = [line["step"] for line in read_lines(folder / "run" / "metrics.jsonl")]
    assert f"stopped by {number.name} after step {steps[-1]} of 2000; checkpoint saved" in output
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == [
        f"step-{steps[-1]:06d}"
    ]


@pytest.mark.full
@pytest.mark.parametrize(("nproc", "engine"), [(2, ()), *SHARED_OUT])
def test_a_rank_that_is_killed_ends_the_run_with_a_finding(
    folder: Path, nproc: int, engine: tuple[str, ...]
) -> None:
    process = start_and_wait_for(
        3, folder / "run", *command(folder, "run", nproc, "train.steps=2000", *engine)
    )
    rank = next(
        pid
        for pid in map(
            int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(rank, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, output
    assert output.count("error[rank-failed") == 1
    assert "SIGKILL" in output
    last = max((folder / "run/checkpoints").glob("step-*"))
    assert all(
        bool(tensor.isfinite().all()) for tensor in load_file(last / "model.safetensors").values()
    )


@pytest.mark.full
def test_ranks_that_are_still_importing_do_not_outlive_their_killed_parent(folder: Path) -> None:
    process = subprocess.Popen(
        command(folder, "run", 2, "train.steps=20000"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while _children(process.pid).count(b"spawn_main") < 2:
        time.sleep(0.01)
    children = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    _kill_and_wait_until_gone(process, children)


@pytest.mark.full
@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_terminal_that_is_closed_ends_the_run_with_its_checkpoint_and_its_report(
    folder: Path, nproc: int
) -> None:
    ours, theirs = os.openpty()
    arguments = command(folder, "run", nproc, "train.steps=2000", "checkpoint.every_steps=null")
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    metrics = folder / "run/metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert process.poll() is None
        os.read(ours, 65536)
    os.close(ours)  # from now on, writing fails
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 129
    steps = [line["step"] for line in read_lines(metrics)]
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == [
        f"step-{steps[-1]:06d}"
    ]
    assert (folder / "run" / "report.html").exists()


@pytest.mark.full
def test_ranks_do_not_outlive_their_killed_parent(folder: Path) -> None:
    process = start_and_wait_for(1, folder / "run", *command(folder, "run", 2, "train.steps=20000"))
    children = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    _kill_and_wait_until_gone(process, children)


@pytest.mark.full
def test_nothing_is_left_in_the_temporary_directory_by_a_killed_parent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    kill(start_and_wait_for(1, folder / "run", *command(folder, "run", 2)))
    # torch's own cache, which every process of a user shares, stays
    assert [one.name for one in temporary.iterdir() if "torchinductor" not in one.name] == []


def _kill_and_wait_until_gone(process: "subprocess.Popen[Any]", children: list[int]) -> None:
    process.kill()
    process.wait()
    deadline = time.monotonic() + PATIENCE
    while any(_alive(pid) for pid in children):
        assert time.monotonic() < deadline, "a rank is still there"
        time.sleep(0.1)


def _children(pid: int) -> bytes:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return b" ".join(Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
