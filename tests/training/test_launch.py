"""Who starts the ranks of a run, and how long they wait for each other."""

import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import Queue

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.launcher.api import LaunchConfig
from torch.numa.binding import AffinityMode, NumaOptions

from tests.runs import request
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks, meet
from vtool.training import launch
from vtool.training.session import RunRequest


def _as_rank_of_two(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"} | more
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_processes_that_mpi_started_do_not_train_each_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    made = request("digits", f"run.dir={tmp_path / 'run'}")
    with pytest.raises(Findings, match=r"launcher-not-joined.*OMPI_COMM_WORLD_SIZE=2"):
        launch.launch(made, lambda findings: None)
    assert not (tmp_path / "run").exists()


def test_what_a_process_and_its_group_are_sent_is_one_request_of_the_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`timeout vtool train …` sends both; at a second request, ranks are given a few seconds."""
    sent: list[int] = []
    ended: Queue[float] = Queue()
    monkeypatch.setattr(launch.multiprocessing, "active_children", lambda: [None])
    monkeypatch.setattr(launch, "_signal_ranks", sent.append)
    monkeypatch.setattr(launch, "_kill_ranks_after", ended.put)
    forward = launch._Forward()
    forward.handle(signal.SIGTERM, None)
    forward.handle(signal.SIGTERM, None)
    assert sent == [signal.SIGTERM]
    forward._came -= launch.SAME_REQUEST  # as if it had come a second earlier
    forward.handle(signal.SIGTERM, None)
    assert sent == [signal.SIGTERM] * 2
    assert ended.get(timeout=60) == launch.LAST_SECONDS
    assert ended.empty()


def _ask_for_patience(rank: int, made: RunRequest, folder: Path) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": (folder / "port").read_text(),
    }

    def report(_request: RunRequest, ranks: Ranks) -> None:
        group = dist.distributed_c10d._get_default_group()
        (folder / f"{ranks.rank}.pkl").write_bytes(
            pickle.dumps(group._get_backend(torch.device("cpu")).options._timeout)
        )

    launch.train = report  # type: ignore[assignment]
    launch.run_rank(made, Ranks(rank, 2, rank, 2))
    os._exit(0)


@pytest.mark.full
def test_ranks_wait_while_rank_0_writes_a_large_checkpoint(tmp_path: Path) -> None:
    """At 100 MB/s, written and read back, 300 GB take 100 minutes."""
    port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    (tmp_path / "port").write_text(str(port.port))
    del port
    multiprocessing.spawn(
        _ask_for_patience, (request("digits", "device.kind=cpu"), tmp_path), nprocs=2
    )
    assert [pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) for rank in (0, 1)] == [
        timedelta(hours=2)
    ] * 2


@pytest.mark.parametrize(
    ("device", "nproc", "outer", "because"),
    [
        ("auto", 2, False, "a process on a CPU is near no device"),
        ("cuda", 1, False, "a single process is started by no launcher"),
        ("cuda", 2, True, "the processes have been started by a torchrun"),
    ],
)
def test_cores_that_nobody_would_bind_are_refused_before_a_rank_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    nproc: int,
    outer: bool,
    because: str,
) -> None:
    if outer:
        _as_rank_of_two(monkeypatch, TORCHELASTIC_RUN_ID="theirs")
    # As in a recipe that leaves the number of processes to whoever starts it: --nproc, or torchrun.
    made = request(
        "digits", f"device.kind={device}", "device.numa=node", f"run.dir={tmp_path / 'run'}"
    )
    made = replace(
        made,
        run=made.run.model_copy(
            update={
                "launch": made.run.launch.model_copy(update={"nproc": None if outer else nproc})
            }
        ),
    )
    with pytest.raises(Findings, match=f"numa-unbound.*device.numa is node, but {because}"):
        launch.launch(made, lambda findings: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("numa", "mode"), [(None, None), *((mode.value, mode) for mode in AffinityMode)]
)
def test_torchrun_gets_what_to_bind_processes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numa: str | None, mode: AffinityMode | None
) -> None:
    launched: list[LaunchConfig] = []

    def instead(config: LaunchConfig, _entrypoint: object) -> Callable[..., dict[int, None]]:
        launched.append(config)
        return lambda *_: {0: None}

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", instead)
    monkeypatch.setattr("vtool.devices._count", lambda _kind: 2)
    made = request(
        "digits",
        "device.kind=cuda",
        "launch.nproc=2",
        f"device.numa={numa or 'null'}",
        f"run.dir={tmp_path / 'run'}",
    )
    launch.launch(made, lambda findings: None)
    assert [config.numa_options for config in launched] == [mode and NumaOptions(mode)]


def test_a_missing_device_is_reported_once_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", None)
    monkeypatch.setattr("vtool.devices._count", lambda _kind: 1)
    made = request("digits", "device.kind=cuda", "launch.nproc=2", f"run.dir={tmp_path / 'run'}")
    with pytest.raises(Findings, match=r"device-missing.*2 processes need a CUDA device each"):
        launch.launch(made, lambda findings: None)


def _left_alone(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    dist.barrier()
    if rank == 1:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(4))
    except Exception as error:
        (folder / "seen").write_text(f"{launch._lost_a_peer(error)} {error}")
    os._exit(0)


@pytest.mark.full
def test_a_rank_whose_peer_has_gone_is_distinguished_from_one_that_fails_itself(
    tmp_path: Path,
) -> None:
    """Such a rank prints one line and no traceback: the error is the other rank's."""
    multiprocessing.spawn(_left_alone, (tmp_path,), nprocs=2)
    assert (tmp_path / "seen").read_text().startswith("True")
    assert not launch._lost_a_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not launch._lost_a_peer(OSError("Broken pipe"))


@pytest.mark.parametrize(
    "words",
    [
        "Gloo connectFullMesh failed with [pair.cc:144] no error",
        "[pair.cc:844] connect [127.0.0.1]:33: Connection refused",
        "wait timeout after 1800000ms, keys: /default_pg/0//cpu//0/rank_1",
    ],
)
def test_a_rank_that_is_lost_while_the_ranks_connect_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    _as_rank_of_two(monkeypatch, TORCHELASTIC_RUN_ID="1")

    def connect(*_: object, **__: object) -> None:
        raise RuntimeError(f"{words}\nand seventy lines more")

    monkeypatch.setattr(dist, "init_process_group", connect)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)  # an engine's of another test
    made = request("digits", f"run.dir={tmp_path / 'run'}")
    with pytest.raises(Findings, match="rank-failed") as raised:
        launch.launch(made, lambda findings: None)
    (found,) = raised.value.diagnostics
    assert found.message == f"rank 0 could not connect to the other ranks: {words}"


def test_an_error_of_the_run_itself_is_not_taken_for_a_lost_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "1"), ("WORLD_SIZE", "1"), ("RANK", "0")):
        monkeypatch.setenv(name, value)

    def broken(*_: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(launch, "run_rank", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        launch.launch(request("digits", f"run.dir={tmp_path / 'run'}"), lambda findings: None)


def _meet_twice(rank: int, made: RunRequest, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    os.environ["MASTER_PORT"] = (folder / "port").read_text()
    first, begun = meet(made.run, Ranks.from_environment())
    again, begun_again = meet(made.run, Ranks.from_environment())
    assert first == again
    seen = (first.rank, first.world, first.local_rank, first.local_world, begun, begun_again)
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(seen))
    with pytest.raises(Findings, match=r"launch-conflict.*of 2 ranks with .*rank 0 of 3 needs one"):
        meet(made.run, replace(first, rank=0, world=3))
    os._exit(0)


@pytest.mark.full
def test_ranks_on_a_machine_are_counted_and_a_process_group_that_is_there_is_used(
    tmp_path: Path,
) -> None:
    """Kubernetes says nothing of what is on a machine; a worker of Ray Train has a group."""
    port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    (tmp_path / "port").write_text(str(port.port))
    del port
    multiprocessing.spawn(_meet_twice, (request("digits", "device.kind=cpu"), tmp_path), nprocs=2)
    assert [pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) for rank in (0, 1)] == [
        (0, 2, 0, 2, True, False),
        (1, 2, 1, 2, True, False),
    ]
