"""A rank's step without values, against the same step with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from tests.engines.ranks import run_ranks
from tests.planning.test_micro_batch import run_of
from vtool.config.schema import Run
from vtool.data.loss import summed_nll
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.planning.micro_batch import build_batch, shape_of
from vtool.planning.model import model_of
from vtool.planning.step import Step, measure_step
from vtool.training.model_and_engine import build_engine, prepare_model

SIZES = ("data.max_length=64", "data.global_batch_size=2")


def plan(run: Run, world: int) -> Step:
    return measure_step(run, model_of(run), world, shape_of(run))


def real_peak(run: Run) -> int:
    """The peak of live tensors in the passes of one real rank."""
    module: Any = model_of(run)
    weights = {name: torch.zeros(one.shape) for name, one in module.named_parameters()}
    prepare_model(run, module, weights)
    engine: Any = build_engine(run, module, Ranks(), weights)
    batch = build_batch(module, load_family(run.model.family), shape_of(run))
    tracker = MemTracker()
    tracker.track_external(module, engine.optimizer)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            with engine.autocast():
                nll = summed_nll(module, batch, module)
            torch.autograd.backward(nll / batch.supervised)
    peak = tracker.get_tracker_snapshot("peak")
    return sum(kinds["Total"] for kinds in peak.values())


@pytest.mark.full
@pytest.mark.parametrize(
    "settings", [(), ("model.dtype=bfloat16",), ("model.gradient_checkpointing=full",)]
)
def test_a_step_without_values_has_the_live_bytes_of_one_with_them(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run = run_of(tmp_path, *SIZES, "engine=ddp", *settings)
    planned = plan(run, 1)
    passes = planned.peak - planned.memory["optimizer"]
    assert passes == pytest.approx(real_peak(run), rel=0.01)
    trained = sum(4 * one.numel() for one in model_of(run).parameters())
    assert planned.memory["optimizer"] == 2 * trained
    assert planned.memory["gradients"] <= trained
    assert planned.sent == 0


def count_sent(ranks: Ranks, run: Run) -> tuple[int, int, int]:
    """Return bytes of the shares, of what is gathered and of what is reduced, of a real rank."""
    import torch.distributed as dist

    module: Any = model_of(run)
    zero = torch.zeros(())
    weights = {name: zero.expand(one.shape) for name, one in module.named_parameters()}
    prepare_model(run, module, weights)
    moved = [0, 0]
    gather, reduce = dist.all_gather_into_tensor, dist.reduce_scatter_tensor

    def gathered(output: Any, *more: Any, **others: Any) -> Any:
        moved[0] += output.nbytes
        return gather(output, *more, **others)

    def reduced(output: Any, whole: Any = None, *more: Any, **others: Any) -> Any:
        whole = others.pop("input", whole)
        moved[1] += whole.nbytes
        return reduce(output, whole, *more, **others)

    engine: Any = build_engine(run, module, ranks, weights)
    batch = build_batch(module, load_family(run.model.family), shape_of(run))
    patched: Any = dist
    patched.all_gather_into_tensor, patched.reduce_scatter_tensor = gathered, reduced
    try:
        nll = lambda model, one: summed_nll(model, one, module)  # noqa: E731
        engine.forward_backward([batch], nll, 2 * batch.supervised, every_parameter=True)
    finally:
        patched.all_gather_into_tensor, patched.reduce_scatter_tensor = gather, reduce
    shares = sum(one.to_local().nbytes for one in module.parameters())
    return shares, moved[0], moved[1]


@pytest.mark.full
def test_shares_and_traffic_are_those_of_two_real_ranks(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SIZES, "engine=fsdp2", "model.dtype=bfloat16")
    shares, gathered, reduced = run_ranks(count_sent, 2, run)[0]
    assert gathered > 0 < reduced
    planned = plan(run, 2)
    assert planned.memory["weights"] == pytest.approx(shares, rel=0.01)
    assert planned.memory["optimizer"] == 2 * shares
    assert planned.sent == pytest.approx((gathered + reduced) / 2, rel=1e-6)


@pytest.mark.full
def test_more_ranks_keep_less_each(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.max_length=64", "data.global_batch_size=1024", "engine=fsdp2")
    two, many = plan(run, 2), plan(run, 64)
    kept = [step.memory["weights"] + step.memory["optimizer"] for step in (two, many)]
    assert kept[1] == pytest.approx(kept[0] / 32, rel=0.1)  # rows that do not divide are padded
    assert many.memory["activations"] == pytest.approx(two.memory["activations"], rel=0.05)
