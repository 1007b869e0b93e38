"""The gradients of a step on one rank or two, each a process forked from this one."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.first_hour.made import gradients_of, open_session, run_of
from vtool.data.loader import load_steps
from vtool.engines.ranks import Ranks

SUPERVISED = 64
"""The number that the sum is divided by: of any size, and the same on all ranks."""


def two_ranks(rows: Path, kind: str, engine: str, world: int) -> dict[str, Tensor]:
    """Return the gradients that rank 0 of so many has. No device may have been used before."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            fork.Process(target=_rank, args=(rank, world, Path(folder), rows, kind, engine))
            for rank in range(world)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        if any(each.exitcode for each in ranks):
            raise RuntimeError(f"ranks of {engine} ended with {[each.exitcode for each in ranks]}")
        found: dict[str, Tensor] = torch.load(Path(folder) / "gradients.pt")
    return found


def _rank(rank: int, world: int, folder: Path, rows: Path, kind: str, engine: str) -> None:
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        backend = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}[kind]
        meeting = f"file://{folder}/meeting"
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world)
    settings = ("data.global_batch_size=8", "data.micro_batch_size=4", "train.steps=1")
    run = run_of(rows, device, *settings, f"engine={engine}", "model.dtype=float32")
    run = run.model_copy(
        update={"run": run.run.model_copy(update={"dir": str(folder / str(rank))})}
    )
    session = open_session(run, device, real=False, ranks=Ranks(rank, world, rank, world))
    batches = next(load_steps(session.rows["train"], range(1, 2), session.micro_batches, 0))
    found = gradients_of(session, batches, SUPERVISED)
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
    if world > 1:
        dist.barrier()
    os._exit(0)  # torch's own end may abort once DDP has used the group
