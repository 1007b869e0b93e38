"""One process of `vtool verify RECIPE`:

proofs on the recipe's own engine. `vtool.verify.prove` starts it.
"""

import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from vtool.engines.ranks import Ranks
from vtool.verify.processes import PATIENCE, answer, asked
from vtool.verify.proofs.context import build_proof_context
from vtool.verify.proofs.proof import Proof
from vtool.verify.prove import not_computed, prove_on
from vtool.verify.proved import PROCESSES, ProveTask


def main(folder_name: str, rank: int) -> None:
    """Prove, and leave at once."""
    folder = Path(folder_name)
    task: ProveTask = asked(folder)
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo",
        init_method=rendezvous,
        rank=rank,
        world_size=PROCESSES,
        timeout=timedelta(seconds=10 * PATIENCE if task.full_size else PATIENCE),
    )
    proofs: list[Proof] = []
    try:
        own = folder / f"rank{rank}"
        own.mkdir()
        context = build_proof_context(task.run, own, full_size=task.full_size)
        for rule in task.rules:
            proofs += prove_on(context, Ranks(rank, PROCESSES, rank, PROCESSES), [rule])
    except Exception as error:
        traceback.print_exc()
        proofs.append(not_computed(task.rules[len(proofs)], error))
    answer(folder, rank, proofs)
