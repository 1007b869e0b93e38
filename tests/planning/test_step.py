"""A rank's step without values, against the same step with them."""

import time
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
from vtool.models.tower_index import tower_indexer
from vtool.planning.micro_batch import Shape, build_batch, shape_of
from vtool.planning.model import model_of
from vtool.planning.step import _NO_HOOK, StepNeeds, _places, measure_step
from vtool.releases import fsdp_groups
from vtool.training.eight_bit import AdamW8bit
from vtool.training.model_and_engine import build_engine, prepare_model

pytestmark = pytest.mark.usefixtures("no_process_group")

BASES = ("float32", "nf4")
SIZES = ("data.max_length=64", "data.global_batch_size=2")


def plan(run: Run, world: int) -> StepNeeds:
    return measure_step(run, model_of(run), world, shape_of(run, world))


def real_peak(run: Run) -> int:
    """The peak of live tensors in the passes of one real rank."""
    module: Any = model_of(run)
    weights = {name: torch.zeros(one.shape) for name, one in module.named_parameters()}
    prepare_model(run, module, weights)
    engine: Any = build_engine(run, module, Ranks(), weights)
    batch = build_batch(module, load_family(run.model.family), shape_of(run, 1))
    tracker = MemTracker()
    tracker.track_external(module, engine.optimizer)
    with tracker:
        for parameter in module.parameters():  # its hooks are refused by what gets no gradient
            if not parameter.requires_grad:
                tracker._param_to_grad_hook_handles[parameter] = (_NO_HOOK, _NO_HOOK)
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


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_in_nf4_is_planned_as_it_is_kept(tmp_path: Path, dtype: str) -> None:
    """Half a byte a weight of the language model's layers, and four bytes for 64 of them."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    given = (*SIZES, "engine=ddp", f"model.dtype={dtype}", "lora={rank: 2}")
    wide, packed = (run_of(tmp_path, *given, f"lora.base_dtype={base}") for base in BASES)
    planned = plan(packed, 1)
    # an optimizer's state is for what is trained, which is the same
    assert planned.memory["optimizer"] == plan(wide, 1).memory["optimizer"]
    passes = planned.peak - planned.memory["optimizer"]
    assert passes == pytest.approx(real_peak(packed), rel=0.01)
    model = model_of(packed)
    numbers = sum(
        one.weight.numel()
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and ".language_model." in name
    )
    less = plan(wide, 1).memory["weights"] - planned.memory["weights"]
    assert less == pytest.approx(numbers * (4 - 0.5 - 4 / 64), rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(("engine", "world"), [("ddp", 1), ("fsdp2", 2)])
def test_states_of_eight_bits_are_planned_as_they_are_kept(
    tmp_path: Path, engine: str, world: int
) -> None:
    """One rank's are counted from a real optimizer; two have the same between them."""
    run = run_of(tmp_path, *SIZES, f"engine={engine}", "optim.states=8bit")
    module: Any = model_of(run)
    real = AdamW8bit(
        [torch.nn.Parameter(torch.zeros(one.shape)) for one in module.parameters()], lr=1e-3
    )
    for group in real.param_groups:
        for one in group["params"]:
            one.grad = torch.zeros_like(one)
    real.step()
    kept = sum(
        each.nbytes
        for state in real.state.values()
        for name, each in state.items()
        if name != "step"
    )
    made = plan(run, world)
    assert made.state == kept  # of a checkpoint, which has both ranks'
    planned = made.memory["optimizer"]
    if world == 1:
        assert planned == kept
    else:
        # rows that two ranks cannot halve lie on the first one
        assert kept / 2 <= planned <= 0.51 * kept


def count_sent(ranks: Ranks, run: Run) -> tuple[int, int, int]:
    """Return bytes of this rank's shares, of what is gathered in a step, and of what is reduced.

    Each part is gathered for its forward pass, and again for its backward where it is freed in
    between: in bfloat16. Gradients are reduced once, in float32.
    """
    module: Any = model_of(run)
    zero = torch.zeros(())
    weights = {name: zero.expand(one.shape) for name, one in module.named_parameters()}
    prepare_model(run, module, weights)
    engine: Any = build_engine(run, module, ranks, weights)
    gathered = reduced = 0
    for part, freed in engine.parts:
        for group in fsdp_groups(part):
            padded = sum(one._sharded_param_data.numel() for one in group.fsdp_params) * ranks.world
            gathered += 2 * padded * (2 if freed else 1)
            reduced += 4 * padded
    return sum(one.to_local().nbytes for one in module.parameters()), gathered, reduced


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


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_places_are_those_that_the_model_would_find_itself(tmp_path: Path, family: str) -> None:
    run = run_of(tmp_path, f"model={family}_tiny", "data.max_length=64", "data.micro_batch_size=3")
    shape = Shape(3, 64, 5, 4, 4, packed=False)
    module, of = model_of(run), load_family(family)
    batch = build_batch(module, of, shape)
    indexer = tower_indexer(of, module)
    assert indexer is not None
    found = _places(batch, module, shape, indexer)
    names = ("mm_token_type_ids", "image_grid_thw", "attention_mask")
    given = {name: batch.inputs[name] for name in names}
    positions, _ = module.model.get_rope_index(batch.inputs["input_ids"], **given)
    assert torch.equal(found["inputs"]["position_ids"], positions)
    index, whole = found["towers"]["image_index"], indexer.index(batch.inputs["image_grid_thw"])
    assert all(torch.equal(index.places[name], one) for name, one in whole.places.items())
    assert all(index.spans[name].lengths == one.lengths for name, one in whole.spans.items())
    patches = found["inputs"]["image_grid_thw"].prod(-1).sum()
    assert patches == len(batch.inputs["pixel_values"])


def test_a_step_of_many_images_takes_no_longer(tmp_path: Path) -> None:
    """The work for each image was minutes of this one."""
    run = run_of(tmp_path, "data.max_length=64", "data.global_batch_size=2")
    plan(run, 1)  # imports
    seconds = []
    for images in (20, 20_000):
        began = time.process_time()
        shape = Shape(1, 4 * images, images, 2, 1, packed=False)
        measure_step(run, model_of(run), 1, shape)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 15 + seconds[0]
