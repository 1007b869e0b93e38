"""`train sft -m` and `validate-config -m`, as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.cli.sweep import EndedRun, PlannedRun, job_table, plan_jobs
from vtool.config.sweep import Job, expand_grid
from vtool.diagnostics import Findings

SHORT = [
    "train.steps=40",
    "optim.warmup_steps=0",
    "data.global_batch_size=8",
    "data.micro_batch_size=8",
    "checkpoint.every_steps=null",
    "evaluation.every_steps=null",
    "data.train=[{format: digits, split: validation}]",
    "data.test=[]",
    "data.validation=[]",
    "device.threads=1",
]


def folders(*overrides: str) -> list[str]:
    return [str(planned.folder) for planned in plan_jobs("digits", expand_grid(overrides))]


def test_every_job_has_a_folder_of_its_own() -> None:
    assert folders("optim.lr=0.1,0.2") == ["runs/digits-lr=0.1", "runs/digits-lr=0.2"]
    assert folders("optim.lr=0.1,0.2", "run.name=mine") == ["runs/mine-lr=0.1", "runs/mine-lr=0.2"]
    assert folders("optim.lr=0.1,0.2", "run.dir=here") == ["here/lr=0.1", "here/lr=0.2"]
    assert folders("run.name=a,b") == ["runs/a", "runs/b"]
    assert folders("optim.lr=0.1") == ["runs/digits"]
    quoted, _ = plan_jobs("digits", expand_grid(["run.seed=1,2", "run.name='it\\'s'"]))
    assert quoted.overrides[-1] == "run.name='it\\'s-seed=1'"


def test_jobs_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(Findings, match="two jobs would train in same"):
        plan_jobs("digits", expand_grid(["run.name=a,b", "run.dir=same"]))


def test_the_findings_of_all_jobs_come_before_the_first_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app,
        [
            *("train", "sft", "digits", "-m", "optim.lr=0.1,-1", "run.seed=1,2"),
            *("train.steps=9", "train.epochs=3"),
        ],
    )
    assert done.exit_code == 1
    assert done.stderr.count("out-of-range") == 2  # the finding, and where it is explained
    assert done.stderr.count("steps-or-epochs VT201") == 1
    assert list(tmp_path.iterdir()) == []


def test_validate_config_says_which_combination_it_is() -> None:
    done = CliRunner().invoke(
        app,
        [
            "validate-config",
            "digits",
            "-m",
            "optim.lr=0.1,-1",
            "train.steps=60",
            "--format",
            "json",
        ],
    )
    results = json.loads(done.stdout)["results"]
    assert done.exit_code == 1
    assert [(result["subject"], result["verdict"]) for result in results] == [
        ("digits optim.lr=0.1", "clean"),
        ("digits optim.lr=-1", "unsafe"),
    ]


def test_a_table_has_what_became_of_each(tmp_path: Path) -> None:
    jobs = [PlannedRun(Job((), (f"run.seed={n}",)), (), tmp_path / str(n)) for n in range(4)]
    for job, nll in zip(jobs, (0.3, 0.1, 0.2, 0.1), strict=True):
        job.folder.mkdir()
        # the better the validation, the worse the test
        (job.folder / "result.json").write_text(json.dumps({"test_nll": 1 - nll, "steps": 2}))
        line = {"step": 2, "validation_nll": nll, "validation_exact_match": 1 - nll}
        (job.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    _, head, *rows, _, note = job_table(
        [
            EndedRun(jobs[0], "finished", 0),
            EndedRun(jobs[3], "failed with 1", 1),
            EndedRun(jobs[1], "finished", 0),
            EndedRun(jobs[2], "already finished", 0),
        ]
    )
    assert head.split() == ["run", "settings", "status", "exact", "match", "NLL"]
    assert [row.split()[1:] for row in rows] == [
        ["run.seed=1", "finished", "90.00%", "0.1000", "best"],
        ["run.seed=2", "already", "finished", "80.00%", "0.2000"],
        ["run.seed=0", "finished", "70.00%", "0.3000"],
        ["run.seed=3", "failed", "with", "1", "-", "-"],
    ]
    assert "scores are of the validation rows" in note


def test_without_validation_rows_nothing_is_the_best_and_the_test_rows_choose_none(
    tmp_path: Path,
) -> None:
    (tmp_path / "result.json").write_text('{"test_exact_match": 0.9721, "test_nll": 0.1}')
    jobs = [PlannedRun(Job((), (f"run.seed={seed}",)), (), tmp_path) for seed in range(2)]
    lines = list(job_table([EndedRun(each, "finished", 0) for each in jobs]))
    assert [line.split()[-2:] for line in lines[2:4]] == [["-", "-"], ["-", "-"]]
    assert "give data.validation" in lines[-1]


SWEEP = [sys.executable, "-m", "vtool", "train", "sft", "digits", "-m", "run.seed=1,2", *SHORT]
SWEEP += ["--no-preflight"]
LONG = [*SWEEP, "train.steps=400"]
"""A sweep whose jobs have time to be stopped."""


def begun_sweep(folder: Path, command: list[str]) -> "tuple[subprocess.Popen[bytes], Path]":
    """Start a sweep, and return it and the metrics of its first job, which has taken steps."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    lines = folder / "runs/digits-seed=1/metrics.jsonl"
    while not (lines.exists() and lines.read_text().count("\n") > 1):
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.02)
    return process, lines


def job_of(process: "subprocess.Popen[bytes]") -> str:
    (job,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return job


@pytest.mark.full
@pytest.mark.parametrize(
    "again",
    [False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["it is stopped", "it resumes"],
)
def test_a_stop_ends_the_job_that_runs_and_the_same_command_resumes(
    tmp_path: Path, again: bool
) -> None:
    command = SWEEP if again else LONG
    process, lines = begun_sweep(tmp_path, command)
    # A terminal's Ctrl-C, while the sweep is not given a processor. Were it to reach the job
    # too, the sweep's would be a second one, at which a run ends without a checkpoint.
    os.kill(process.pid, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGINT)
    job = job_of(process)
    steps_before = lines.read_text().count("\n")
    while lines.read_text().count("\n") < steps_before + 3:
        assert Path(f"/proc/{job}/stat").read_text().rpartition(") ")[2][0] != "Z"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait() == 130
    rows = [line.split()[1:4] for line in (tmp_path / "log").read_text().splitlines()[-5:-3]]
    assert rows == [["run.seed=1", "stopped", "-"], ["run.seed=2", "not", "started"]]
    assert not (tmp_path / "runs/digits-seed=2").exists()
    steps = [json.loads(line)["step"] for line in lines.read_text().splitlines()]
    saved = tmp_path / "runs/digits-seed=1/checkpoints"
    # from which the same command resumes
    assert [path.name for path in saved.iterdir()] == [f"step-{steps[-1]:06d}"]
    if not again:
        return
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()[-5:-3]] == ["finished", "finished"]
    steps = [json.loads(line)["step"] for line in lines.read_text().splitlines()]
    assert steps == list(range(1, 41))  # the stopped one resumed where it was


@pytest.mark.full
def test_a_job_ends_with_the_sweep_however_that_ends(tmp_path: Path) -> None:
    process, lines = begun_sweep(tmp_path, LONG)
    job = job_of(process)
    process.kill()
    process.wait()
    state = Path(f"/proc/{job}/stat")
    while state.exists() and state.read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.02)
    assert len(list((lines.parent / "checkpoints").iterdir())) == 1
