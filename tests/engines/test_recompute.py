"""Any number of blocks computes its activations again, on every engine, for the same gradient."""

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.each_family import EACH_FAMILY
from tests.engines.parity import base_model, made_run
from tests.engines.ranks import run_ranks
from tests.models.tiny import tiny_model
from tests.runs import session
from vtool.config.expected import AGAIN, CHECKPOINTING, expected_settings
from vtool.config.readback import compare_readback
from vtool.data.loader import load_steps
from vtool.engines.ranks import Ranks
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models.observe_model import observe_layers
from vtool.releases import enable_checkpointing
from vtool.training.observe_run import observe_run
from vtool.training.session import RunRequest, Session
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

SPREAD = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "tp2": ("megatron", "engine.parallel={tensor: 2}"),
    "pp2": ("megatron", "engine.parallel={pipeline: 2}"),
}
ADAPTED = {f"{name}-lora": (*settings, "lora={rank: 2}") for name, settings in SPREAD.items()}
TOWER, LAYERS = 4, 2
ASKED = {"none": 0, "3": 3, "5": 5, "full": TOWER + LAYERS}
"""Settings, and how many blocks they mean. The first five are the tower's and one layer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("recompute")
    base_model(made)
    return made


def made(folder: Path, spread: str, asked: str) -> RunRequest:
    return made_run(
        folder,
        (SPREAD | ADAPTED)[spread][0],
        "float32",
        folder / "model",
        *(SPREAD | ADAPTED)[spread][1:],
        "train={steps:1,epochs:null}",
        "optim.warmup_steps=0",
        f"model.gradient_checkpointing={asked}",
        f"run.dir={folder}/{spread}-{asked}",
    )


def blocks_of(opened: Session) -> dict[int, Any]:
    """The blocks that are on this rank, by their places in the whole model."""
    inner: Any = opened.engine.module.model
    tower = {} if inner.visual is None else dict(enumerate(inner.visual.blocks))
    if hasattr(inner.language_model, "gpt"):
        layers = inner.language_model.gpt.decoder.layers
        return tower | {TOWER + layer.layer_number - 1: layer for layer in layers}
    return tower | dict(enumerate(inner.language_model.layers, TOWER))


def one_step(ranks: Ranks, runs: dict[str, RunRequest]) -> dict[str, Any]:
    """Return each run's gradient, how often each block has run, and the result of read-back."""
    torch.set_num_threads(1)
    return {name: _one_step(ranks, each) for name, each in runs.items()}


def _one_step(ranks: Ranks, run: RunRequest) -> dict[str, Any]:
    opened, progress = session(run, ranks)
    ran: Counter[int] = Counter()
    for place, block in blocks_of(opened).items():
        block.mlp.register_forward_pre_hook(lambda *_, place=place: ran.update([place]))
    engine, clip = opened.engine, opened.engine.clip_gradient
    seen: list[dict[str, Tensor]] = []

    def look_and_clip(largest: float | None) -> torch.Tensor:
        seen.append(engine.gradients())
        return clip(largest)

    engine.clip_gradient = look_and_clip  # type: ignore[method-assign]
    (batches,) = load_steps(opened.rows["train"], range(1, 2), opened.micro_batches, 0)
    observed = observe_run(opened)
    train_step(opened, progress, 1, batches, StopRequest())
    others = {
        asked: [
            one.parameter
            for one in compare_readback(
                expected_settings(
                    opened.run.model_copy(
                        update={
                            "model": opened.run.model.model_copy(
                                update={"gradient_checkpointing": asked}
                            )
                        }
                    )
                ),
                observed,
            )
        ]
        for asked in ("none", 3, 5, "full")
    }
    return {"gradients": seen[0], "ran": dict(ran), "readback": others}


@pytest.mark.full
@pytest.mark.parametrize("spread", SPREAD | ADAPTED)
def test_gradients_are_equal_to_the_bit_and_the_asked_blocks_run_twice(
    folder: Path, spread: str
) -> None:
    if (SPREAD | ADAPTED)[spread][0] == "megatron" and importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    by_rank = run_ranks(one_step, 2, {asked: made(folder, spread, asked) for asked in ASKED})
    plain = by_rank[0]["none"]["gradients"]
    assert any(".lora_" in name for name in plain) == (spread in ADAPTED)
    assert any("visual" in name and one.any() for name, one in plain.items())
    assert any("language_model" in name and one.any() for name, one in plain.items())
    for asked, blocks in ASKED.items():
        found = by_rank[0][asked]["gradients"]
        assert found.keys() == plain.keys()
        assert all(torch.equal(found[name], plain[name]) for name in plain), (spread, asked)
        places = set()
        for rank in by_rank:
            once, times = rank["none"]["ran"], rank[asked]["ran"]
            places |= set(times)
            assert times == {
                place: count * (2 if place < blocks else 1) for place, count in once.items()
            }, (spread, asked)
        assert places == set(range(TOWER + LAYERS))


@pytest.mark.full
@pytest.mark.parametrize("spread", SPREAD)
def test_another_number_of_blocks_is_read_back(folder: Path, spread: str) -> None:
    """In a pipeline each rank sees its own blocks; together they see a difference."""
    if SPREAD[spread][0] == "megatron" and importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    by_rank = run_ranks(one_step, 2, {"5": made(folder, spread, "5")})
    for asked in ("none", 3, 5, "full"):
        changed = {name for rank in by_rank for name in rank["5"]["readback"][asked]}
        assert changed == (set() if asked == 5 else {CHECKPOINTING})


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_blocks_are_counted_in_the_order_of_computation(name: str) -> None:
    model = tiny_model(name)
    size, blocks = FAMILIES[name].sizes["tiny"], load_family(name).recomputable(model)
    assert len(blocks) == size["vision_depth"] + size["layers"]
    for again in (1, size["vision_depth"], size["vision_depth"] + 1, len(blocks)):
        enable_checkpointing(model, blocks[again:])
        observed = [one for one in observe_layers(model) if one.name == CHECKPOINTING]
        assert [one.of for one in observed] == [(place,) for place in range(len(blocks))]
        assert [one.value == AGAIN for one in observed] == [
            place < again for place in range(len(blocks))
        ]
        enabled = [block.gradient_checkpointing for block in blocks]
        assert enabled == [place < again for place in range(len(blocks))]
