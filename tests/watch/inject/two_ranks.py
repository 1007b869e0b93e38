"""A plain loop on two ranks, for torchrun: prints a digest of the final weights.

usage: two_ranks.py ddp|fsdp2|fsdp1 [break: raises|silent]: rank 1's watch fails, or is not there
"""

import gc
import hashlib
import os
import sys

import torch
import torch.distributed as dist

kind, broken = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
if broken == "silent" and os.environ["RANK"] == "1":
    os.environ.pop("VTOOL_WATCH_TO")  # its optimizer finds nothing to do
if broken == "raises" and os.environ["RANK"] == "1":
    from vtool_watch import capture

    def fails(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory, on purpose")

    capture.Capture._leave = fails  # type: ignore[method-assign]

from tests.watch.inject import tiny  # noqa: E402

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = tiny.make()
run = model
if kind == "ddp":
    run = torch.nn.parallel.DistributedDataParallel(model)
elif kind.startswith("fsdp1"):
    from torch.distributed.fsdp import FullyShardedDataParallel

    here = torch.device("cpu")
    run = FullyShardedDataParallel(model, device_id=here, use_orig_params=kind == "fsdp1")
else:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.model)
    fully_shard(model)
optimizer = torch.optim.AdamW(run.parameters(), lr=1e-2)
for step in range(3):
    micro = range(2 if kind.startswith("fsdp1") else 1)
    batches = [tiny.batch([9, 5 + rank], seed=10 * step + 2 * k + rank) for k in micro]
    everywhere = torch.tensor(sum(9 + 5 + rank - 4 for _ in micro))
    dist.all_reduce(everywhere)
    for batch in batches:
        (tiny.loss_of(run, batch)[0] * world / everywhere).backward()
    optimizer.step()
    optimizer.zero_grad()
digest = hashlib.sha256()
for p in run.parameters():
    whole = p.full_tensor() if hasattr(p, "full_tensor") else p
    digest.update(whole.detach().numpy().tobytes())
if rank == 0:
    print(digest.hexdigest())
dist.barrier()
del run, optimizer, model  # what of them outlives the group may end the process badly
gc.collect()
dist.destroy_process_group()
