"""Commands that a launcher has started several times: real ones where they are installed."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.rows import mixed_rows, write_rows
from vtool.cli.app import app
from vtool.cli.command import OwnProcess
from vtool.cli.launcher import check_launcher

ROOT = Path(__file__).parents[2]
VTOOL = [sys.executable, "-m", "vtool"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "--oversubscribe", "-n", "2"]
SMALL = (
    "data.global_batch_size=2",
    "data.micro_batch_size=1",
    "train={steps:3,epochs:null}",
    "device={kind:cpu,threads:1}",
)


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **AS_ROOT, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def without_open_mpi() -> str | None:
    if shutil.which("mpirun") is None:
        return "mpirun is not installed"
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return None if "Open MPI" in version.stdout else "this mpirun is not Open MPI's"


def rows(folder: Path) -> str:
    write_rows(folder / "my.jsonl", mixed_rows(folder, 6, text_only=(1,)))
    return "my.jsonl"


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("RANK=1 WORLD_SIZE=1", 2, "error[rank-variables VT526]: RANK is 1, and with this"),
        ("LOCAL_RANK=abc", 2, "error[rank-variables VT526]: LOCAL_RANK is `abc`"),
        ("PMI_RANK=0 PMI_SIZE=2", 2, "error[launcher-not-joined VT525]: mpiexec has started 2"),
    ],
)
@pytest.mark.parametrize("command", ["train sft digits", "evaluate digits digits"])
def test_ranks_that_are_none_are_refused_before_anything_is_imported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    text: str,
    status: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (word.split("=") for word in text.split()):
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "vtool.config.load", None)  # importing it would fail
    done = CliRunner().invoke(app, command.split(), obj=OwnProcess())
    assert (done.exit_code, done.stderr.count("error[")) == (status, 1)
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "text", "says"),
    [
        ("verify", "PMI_RANK=0 PMI_SIZE=2", "each of the 2 processes that mpiexec has started"),
        ("verify", "PMI_RANK=1 PMI_SIZE=2", ""),
        ("watch", "PMI_RANK=0 PMI_SIZE=2", "each of the 2 processes that mpiexec has started"),
        ("validate-config", "RANK=x", ""),
        ("doctor", "PMI_RANK=0 PMI_SIZE=2", ""),
        ("convert", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=pod0 MASTER_PORT=29500", ""),
        ("convert", "SLURM_NTASKS=2 SLURM_PROCID=0", ""),
        ("train", "SLURM_NTASKS=2 SLURM_PROCID=0", ""),
    ],
)
def test_what_each_process_may_do_by_itself_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    text: str,
    says: str,
) -> None:
    for name, value in (word.split("=") for word in text.split()):
        monkeypatch.setenv(name, value)
    check_launcher(command)
    assert capsys.readouterr().err.startswith(f"vtool {command}: {says}" if says else "")
    assert bool(capsys.readouterr().out) is False


def test_one_of_several_speaks_where_all_would_write_one_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vtool.launchers._SPEAKS_WITHIN", 0.0)
    for rank, spoken in (("0", 1), ("1", 0)):
        for name, value in (("PMI_RANK", rank), ("PMI_SIZE", "2")):
            monkeypatch.setenv(name, value)
        with pytest.raises(typer.Exit) as ended:
            check_launcher("convert")
        assert ended.value.exit_code == 2
        said = capsys.readouterr().err
        alone = "nothing is done here (PMI_RANK=1, PMI_SIZE=2): the first process says why\n"
        assert spoken or said == alone
        assert said.count("error[launcher-not-joined VT525]: mpiexec has started") == spoken


def test_launch_nproc_beside_a_launcher_is_refused_before_the_proofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    done = CliRunner().invoke(app, ["train", "sft", "digits", "--nproc", "3"])
    assert (done.exit_code, done.stderr.count("error[")) == (2, 1)
    assert "launch-conflict VT208]: launch.nproc is 3, but a launcher has started 2" in done.stderr
    assert "preflight" not in done.output
    sizes = ("engine=megatron", "engine.parallel.tensor=4")
    done = CliRunner().invoke(app, ["train", "sft", "digits", *sizes])
    assert (done.exit_code, "parallel-sizes VT221" in done.output) == (1, True)
    done = CliRunner().invoke(app, ["train", "sft", "digits", "-m", "seed=1,2"])
    assert (done.exit_code, "launch-conflict VT208]: -m starts" in done.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_real_mpirun_is_refused_by_its_name_and_once(tmp_path: Path) -> None:
    if why := without_open_mpi():
        pytest.skip(f"not run: {why}")
    done = run(tmp_path, *MPIRUN, *VTOOL, "train", "sft", "digits")
    assert done.returncode == 2
    assert done.stderr.count("error[") == 1
    assert "VT525]: mpirun has started 2 processes (OMPI_COMM_WORLD_RANK=0, " in done.stderr
    assert "help: start vtool once (without mpirun) and give it --nproc 2" in done.stderr
    assert not list(tmp_path.iterdir())


def _free_port() -> str:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def _two_pods(folder: Path, command: list[str]) -> None:
    """Run a command twice, each as one of two pods, which say nothing of what is on a machine."""
    port = _free_port()
    started = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": rank, "WORLD_SIZE": "2"}
            | {"MASTER_ADDR": "localhost", "MASTER_PORT": port},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [one.communicate()[1] for one in started]
    assert [one.returncode for one in started] == [0, 0], said


STARTED = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "accelerate launch": [
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
        *("--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"),
    ],
}


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("pods", marks=pytest.mark.full),
        *(pytest.param(name, marks=pytest.mark.soak) for name in (*STARTED, "mpirun")),
    ],
)
def test_ranks_of_another_launcher_train_the_same_run_to_the_bit(
    tmp_path: Path, launcher: str
) -> None:
    given = ["train", "sft", rows(tmp_path), *SMALL, "--no-preflight"]
    done = run(tmp_path, *VTOOL, *given, "run.dir=own", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    other = [*given, "run.dir=other"]
    if launcher == "pods":
        _two_pods(tmp_path, [*VTOOL, *other])
    elif launcher == "mpirun":
        if why := without_open_mpi():
            pytest.skip(f"not run: {why}")
        where = {"MASTER_ADDR": "localhost", "MASTER_PORT": _free_port()}
        done = run(tmp_path, *MPIRUN, *VTOOL, *other, **where)
        assert done.returncode == 0, done.stderr
    else:
        done = run(tmp_path, sys.executable, "-m", *STARTED[launcher], "-m", "vtool", *other)
        assert done.returncode == 0, done.stderr
    one, two = (
        (tmp_path / name / "export/model.safetensors").read_bytes() for name in ("own", "other")
    )
    assert one == two
