"""Benchmark: every engine against one process in float64, and its time against bare torch.

Bare torch runs on the same two processes.

All train the same: a tiny Qwen2.5-VL from one folder of weights, rows with and without images and
of unequal lengths, steps of 8 rows in micro-batches of 3.

    gradient         of step 1, ‖Δ‖ / ‖g‖ over all tensors, against ddp × 1 in float64
    loss, norm       over 5 steps, the largest relative difference
    weights          after 5 steps of AdamW, the largest difference of an element
    bf16 loss, norm  of step 1 in bfloat16, relative to the same engine in float32
    bf16 changed     elements that 20 steps at 1e-5 have changed in bfloat16, over those in float32
    time             of a step of the recipe `digits`: CPU time of both processes over that of
                     torch's DistributedDataParallel, with the same batches and optimizer in the
                     same processes; they take turns, and this is the median of rounds (its
                     quartiles)

    python -m benchmarks.engines [--time]     --time: the last column alone
"""

import os

# before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tests.engines.parity import (
    Trace,
    base_model,
    changed,
    largest_difference,
    largest_relative,
    made_run,
    traced,
)
from tests.engines.ranks import run_ranks
from tests.runs import relative_difference, request, session
from vtool.data.collate import Batch
from vtool.data.loader import load_steps, micro_batches
from vtool.data.loss import summed_nll
from vtool.engines.ranks import Ranks
from vtool.models.build import build_model
from vtool.training.optimizer import build_optimizer
from vtool.training.session import RunRequest

DISTRIBUTED = "engine.wrap_config.use_distributed_optimizer=true"
ENGINES: dict[str, tuple[str, ...]] = {
    "ddp × 2": ("engine=ddp",),
    "fsdp2 × 2": ("engine=fsdp2",),
    "megatron, data × 2": ("engine=megatron",),
    "megatron, data × 2, distributed optimizer": ("engine=megatron", DISTRIBUTED),
    "megatron, tensor × 2": ("engine=megatron", "engine.parallel.tensor=2"),
    "megatron, tensor × 2, sequence parallel": (
        "engine=megatron",
        "engine.parallel={tensor:2,sequence:true}",
    ),
    "megatron, pipeline × 2": ("engine=megatron", "engine.parallel.pipeline=2"),
}
SMALL_STEPS = ("train.steps=20", "optim.lr=1e-5", "optim.schedule=constant")
TIMED = (
    "data.micro_batch_size=16",
    "device.threads=1",
    "data.validation=[]",
    "data.test=[]",
    "evaluation.every_steps=null",
)
ROUNDS, TURN = 7, 2
COLUMNS = (
    "",
    "gradient",
    "loss, norm",
    "weights",
    "bf16 loss",
    "bf16 norm",
    "bf16 changed",
    "time",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--time", action="store_true")
    only_time = parser.parse_args().time
    with tempfile.TemporaryDirectory() as made:
        with silent():
            rows = {name: [] for name in ENGINES} if only_time else parity(Path(made))
        print(" | ".join(("| ", *(COLUMNS[1:] if not only_time else COLUMNS[-1:]))) + " |")
        print("|---" * (2 if only_time else len(COLUMNS)) + "|")
        for name, cells in rows.items():
            with silent():
                ratio, spread = timed(name, Path(made))
            print(
                f"| {name} | " + " | ".join([*cells, f"{ratio:.2f} ({spread})"]) + " |", flush=True
            )


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Silence what runs and their ranks print, unless they fail: then print all of it."""
    sys.stdout.flush()
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    with tempfile.TemporaryFile() as said:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(kept[1], said.read())
            raise
        finally:
            for descriptor, before in zip((1, 2), kept, strict=True):
                os.dup2(before, descriptor)
                os.close(before)


def parity(folder: Path) -> dict[str, list[str]]:
    """Return the columns of each engine."""
    base_model(folder)
    model = folder / "model"
    runs: dict[str, RunRequest] = {}
    for name, (engine, *more) in ENGINES.items():
        kind = engine.partition("=")[2]
        runs[f"{name}; float32"] = made_run(folder, kind, "float32", model, *more)
        runs[f"{name}; small"] = made_run(folder, kind, "float32", model, *more, *SMALL_STEPS)
        runs[f"{name}; bfloat16"] = made_run(folder, kind, "bfloat16", model, *more, *SMALL_STEPS)
    (reference,) = traced(1, {"one": made_run(folder, "ddp", "float64", model)})["one"]
    found = {name: ranks[0] for name, ranks in traced(2, runs, digested=False).items()}
    return {
        name: cells(
            reference, *(found[f"{name}; {kind}"] for kind in ("float32", "small", "bfloat16"))
        )
        for name in ENGINES
    }


def cells(reference: Trace, ours: Trace, exact: Trace, rounded: Trace) -> list[str]:
    figures = (
        relative_difference(ours.gradients, reference.gradients),
        max(
            largest_relative(ours.losses, reference.losses),
            largest_relative(ours.norms, reference.norms),
        ),
        largest_difference(ours.weights, reference.weights),
        largest_relative(rounded.losses[:1], exact.losses[:1]),
        largest_relative(rounded.norms[:1], exact.norms[:1]),
    )
    return [*(f"{figure:.1e}" for figure in figures), f"{changed(rounded) / changed(exact):.4f}"]


def timed(name: str, folder: Path) -> tuple[float, str]:
    """Return the ratio of CPU times, and its quartiles."""
    ratios = run_ranks(
        _turns, 2, request("digits", *TIMED, f"run.dir={folder / 'timed'}", *ENGINES[name])
    )[0]
    ordered = sorted(ratios)
    return (
        median(ratios),
        f"{ordered[len(ordered) // 4]:.2f} to {ordered[-1 - len(ordered) // 4]:.2f}",
    )


def _turns(ranks: Ranks, made: RunRequest) -> list[float]:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        opened, _ = session(made, ranks)
    run, engine, kept = opened.run, opened.engine, opened.ledgers["train"].kept
    steps = range(1, ROUNDS * TURN + 2)

    def batches(rank: int, world: int) -> list[Sequence[Batch]]:
        def plan(step):
            return micro_batches(opened.plan, kept, step, rank, world, run.data.micro_batch_size)

        return list(load_steps(opened.rows["train"], steps, plan, 0))

    of_engine, of_torch = (
        batches(engine.data.rank, engine.data.world),
        batches(ranks.rank, ranks.world),
    )
    model = build_model(run.model, opened.processor, opened.folder.processor, run.run.seed)
    parallel = DistributedDataParallel(model, forward_sync_buffers=False)
    optimizer = build_optimizer(model, run.optim, opened.family.component)

    def ours(number: int) -> float:
        mine = of_engine[number]
        # of digits, two a row
        supervised = sum(batch.supervised for batch in mine) * engine.data.world
        sums = engine.forward_backward(mine, summed_nll, supervised, every_parameter=True)
        engine.clip_gradient(run.optim.clip_norm)
        engine.optimizer_step(run.optim.lr)
        return float(sums.sum()) / sum(batch.supervised for batch in mine)

    def bare(number: int) -> float:
        (batch,) = of_torch[number]
        loss = summed_nll(parallel, batch) / batch.supervised  # DDP takes the mean over ranks
        loss.backward()
        clip_grad_norm_(model.parameters(), run.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    first = [ranks.all_gather([one(0)]) for one in (ours, bare)]
    means = [sum(report[0] for report in each) / len(each) for each in first]
    assert abs(means[0] / means[1] - 1) < 1e-5, f"they do not train the same: {means}"
    return [
        _ratio(ours, bare, range(1 + TURN * turn, 1 + TURN * (turn + 1)), swapped=bool(turn % 2))
        for turn in range(ROUNDS)
    ]


def _ratio(
    ours: Callable[[int], float],
    bare: Callable[[int], float],
    steps: Sequence[int],
    *,
    swapped: bool,
) -> float:
    took = {}
    for one in (bare, ours) if swapped else (ours, bare):
        dist.barrier()
        began = time.process_time()
        for step in steps:
            one(step)
        took[one] = torch.tensor(time.process_time() - began)
        dist.all_reduce(took[one])
    return float(took[ours] / took[bare])


if __name__ == "__main__":
    main()
