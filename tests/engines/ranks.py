"""Run a function on several gloo ranks, each a process of its own, and collect what it returns."""

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from vtool.engines.ranks import Ranks

# Imported once, by the server that ranks are forked from: each would take ten seconds for it. It
# computes nothing and has one thread.
PRELOADED = [
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "vtool.engines.fsdp2",
    "vtool.engines.megatron.engine",
    "vtool.training.sft",
]


def run_ranks(work: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """`work(ranks, *arguments)` on each rank;

    its results by rank. `work` must be a function of a module.
    """
    if world == 1:
        return [work(Ranks(), *arguments)]
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        multiprocessing.start_processes(
            _rank, (work, world, folder, arguments), nprocs=world, start_method="forkserver"
        )
        return [pickle.loads((Path(folder) / f"{rank}.pkl").read_bytes()) for rank in range(world)]


def _rank(
    rank: int, work: Callable[..., Any], world: int, folder: str, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    result = work(Ranks(rank, world, rank, world), *arguments)
    (Path(folder) / f"{rank}.pkl").write_bytes(pickle.dumps(result))
    dist.destroy_process_group()
    os._exit(0)  # torch's own end aborts about one time in ten, once DDP has used the group
