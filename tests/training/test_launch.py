"""Who starts the ranks of a run, and how long they wait for each other."""

import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from tests.runs import request
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training import launch
from vtool.training.setup import Request


@pytest.mark.parametrize("nproc", ["null", "2"])
def test_processes_that_another_launcher_started_do_not_train_each_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nproc: str
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    made = request("digits", f"run.dir={tmp_path / 'run'}", f"launch.nproc={nproc}")
    with pytest.raises(Findings, match=r"launch-conflict.*WORLD_SIZE is 2, RANK is 1") as raised:
        launch.launch(made, lambda findings: None)
    assert "torchrun" in (raised.value.diagnostics[0].help or "")
    assert not (tmp_path / "run").exists()


def _ask_for_patience(rank: int, made: Request, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": (folder / "port").read_text()}

    def tell(_request: Request, ranks: Ranks) -> None:
        group = dist.distributed_c10d._get_default_group()
        (folder / f"{ranks.rank}.pkl").write_bytes(pickle.dumps(group._get_backend(torch.device("cpu")).options._timeout))

    launch.train = tell  # type: ignore[assignment]
    launch.run_rank(made, Ranks(rank, 2, rank, 2))
    os._exit(0)


def test_ranks_wait_while_rank_0_writes_a_large_checkpoint(tmp_path: Path) -> None:
    """At 100 MB/s, written and read back, 300 GB take 100 minutes."""
    port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    (tmp_path / "port").write_text(str(port.port))
    del port
    multiprocessing.spawn(_ask_for_patience, (request("digits", "device.kind=cpu"), tmp_path), nprocs=2)
    assert [pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) for rank in (0, 1)] == [timedelta(hours=2)] * 2
