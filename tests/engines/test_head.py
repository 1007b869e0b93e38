"""The head's loss from chunks is, on every engine, the loss from all logits, tied and untied."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engines.parity import Trace, base_model, largest_relative, made_run, trace, traced
from tests.runs import relative_difference
from vtool.data import loss
from vtool.engines.ranks import Ranks
from vtool.training.session import RunRequest

pytestmark = pytest.mark.full

HEADS = ("tied", "untied")
STEP = ("train={steps:1,epochs:null}", "optim.warmup_steps=0")
SPREAD = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "tp2": ("megatron", "engine.parallel={tensor: 2}"),
    "tp2+sp": ("megatron", "engine.parallel={tensor: 2, sequence: true}"),
    "pp2": ("megatron", "engine.parallel={pipeline: 2}"),
}
RUNS = [
    *(("ddp", "float64", 1e-12), ("fsdp2", "float64", 1e-12)),
    *((spread, "float32", 5e-7) for spread in SPREAD),
]
"""The layout of a run, its dtype, and its gradient's tolerance against a plain one in float64."""


def untied(model: Path, folder: Path) -> Path:
    """The model again, with a head of its own."""
    shutil.copytree(model, folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    (file,) = folder.glob("*.safetensors")
    tensors: dict[str, Tensor] = load_file(file)
    (embedding,) = (name for name in tensors if name.endswith("embed_tokens.weight"))
    shape = tensors[embedding].shape
    tensors["lm_head.weight"] = torch.randn(shape, generator=torch.manual_seed(3)) * 0.1
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunRequest]:
    folder = tmp_path_factory.mktemp("heads")
    tied = base_model(folder)
    heads = {"tied": tied, "untied": untied(tied, folder / "untied")}
    return lambda head, dtype, engine, *more: made_run(
        folder, engine, dtype, heads[head], *STEP, *more
    )


@pytest.fixture(scope="module")
def plain(made: Callable[..., RunRequest]) -> dict[str, Trace]:
    """One process in float64, whose head gives logits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "head_gives_nll", lambda *_: nullcontext(False))
        return {
            head: trace(Ranks(), made(head, "float64", "ddp"), digested=False) for head in HEADS
        }


@pytest.fixture(scope="module")
def chunked(made: Callable[..., RunRequest]) -> dict[str, list[Trace]]:
    """Two ranks."""
    there = importlib.util.find_spec("megatron") is not None
    runs = {
        f"{spread}, {dtype}, {head}": made(head, dtype, *SPREAD[spread])
        for spread, dtype, _ in RUNS
        for head in HEADS
        if there or SPREAD[spread][0] != "megatron"
    }
    return traced(2, runs, digested=False)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("spread", "dtype", "bound"), RUNS)
def test_gradients_are_those_of_all_logits(
    plain: dict[str, Trace],
    chunked: dict[str, list[Trace]],
    head: str,
    spread: str,
    dtype: str,
    bound: float,
) -> None:
    name = f"{spread}, {dtype}, {head}"
    if name not in chunked:
        pytest.skip("megatron-core is not installed")
    wanted, found = plain[head], chunked[name][0]
    assert ("lm_head.weight" in wanted.gradients) == (head == "untied")
    assert relative_difference(found.gradients, wanted.gradients) <= bound
    assert largest_relative(found.losses, wanted.losses) <= bound
