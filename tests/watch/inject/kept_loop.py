"""Two passes in every setting of an engine, for torchrun: prints where gradients were, as JSON.

usage: kept_loop.py fsdp2|ddp|fsdp1

For each setting: tensors trained, tensors with a gradient in some place after a first pass and
after the second, and what waits in the engine after each.
"""

import itertools
import json
import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from tests.watch.inject import tiny
from vtool.watch.inject.vtool_watch.kept_gradients import KeptGradients
from vtool.watch.inject.vtool_watch.model import describe_model

HALF, FULL = torch.bfloat16, torch.float32
DTYPES = (None, HALF, FULL)
dist.init_process_group("gloo")


def fsdp2(model: Any, param: Any, reduce: Any, reshard: bool, synced: bool) -> tuple[Any, Any]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mixed = MixedPrecisionPolicy(param, reduce)
    fully_shard(model.model, mp_policy=mixed, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=mixed, reshard_after_forward=reshard)

    def context(last: bool) -> Any:
        model.set_requires_gradient_sync(last or synced)
        return nullcontext()

    return model, context


def ddp(model: Any, views: bool, synced: bool) -> tuple[Any, Any]:
    run = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=views)
    return run, lambda last: nullcontext() if last or synced else run.no_sync()


def fsdp1(model: Any, original: bool, synced: bool) -> tuple[Any, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    here = torch.device("cpu")
    run = FullyShardedDataParallel(model, device_id=here, use_orig_params=original)
    return run, lambda last: nullcontext() if last or synced else run.no_sync()


BOOLS = (False, True)
SETTINGS: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "fsdp2": (fsdp2, list(itertools.product(DTYPES, DTYPES, BOOLS, BOOLS))),
    "ddp": (ddp, list(itertools.product(BOOLS, BOOLS))),
    "fsdp1": (fsdp1, list(itertools.product(BOOLS, BOOLS))),
}
wrap, settings = SETTINGS[sys.argv[1]]
for given in settings:
    model = tiny.make()
    found = describe_model(model, model.lm_head)
    run, context = wrap(model, *given)
    kept, seen = KeptGradients(found), []
    for last in (False, True):
        with context(last):
            tiny.loss_of(run, tiny.batch([9, 5 + dist.get_rank()], seed=int(last)))[0].backward()
        seen.append((len(kept.nonzero(1000)), kept.waiting(), kept.are_gone(True)))
    found.model.zero_grad()
    gone = kept.are_gone(True)
    trained = sum(p.requires_grad for p in model.parameters())
    reduced = kept.reduced_in()
    line = {
        "given": str(given),
        "synced": given[-1],
        "trained": trained,
        "seen": seen,
        "gone": gone,
        "reduced_in": reduced,
    }
    if dist.get_rank() == 0:
        print(json.dumps(line))
dist.barrier()
dist.destroy_process_group()
