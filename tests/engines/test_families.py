"""Every family on every engine:

two ranks, one of them without an image, leave the gradient of one process.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.each_family import EACH_FAMILY
from tests.engines.ranks import run_ranks
from tests.engines.test_exactness import reference, step_gradients
from tests.models.tiny import tiny_model
from tests.rows import mixed_rows, write_rows
from tests.runs import gradients, messages, relative_difference, request, session
from vtool.config import schema
from vtool.config.schema import Optim
from vtool.data.collate import collate
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.training.session import RunRequest
from vtool.training.step import micro_batch_nll

ENGINES = ("ddp", "fsdp2")
ROWS = 6
# Without special kernels the gated delta rule is computed in float32, whatever the model's dtype.
TOLERANCE = dict.fromkeys(FAMILIES, 1e-12) | {"qwen3_5": 1e-6}


def made_run(folder: Path, family: str, engine: str, *more: str) -> RunRequest:
    """One step of 6 rows, at most two a micro-batch, of which a single one has images: two."""
    overrides = [
        messages(folder / "rows.jsonl"),
        *(
            f"data.global_batch_size={ROWS}",
            "data.micro_batch_size=2",
            "data.image={min_pixels:784,max_pixels:4096}",
        ),
        *(
            f"model.family={family}",
            "model.dtype=float64",
            f"engine={engine}",
            f"run.dir={folder / family / engine}",
        ),
        "optim.warmup_steps=0",
    ]
    return request("rows", *overrides, *more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("families")
    write_rows(made / "rows.jsonl", mixed_rows(made, ROWS, text_only=(0, 1, 2, 3, 5)))
    return made


def all_gradients(
    ranks: Ranks, made: Mapping[tuple[str, str], RunRequest]
) -> dict[tuple[str, str], Any]:
    return {name: step_gradients(ranks, each) for name, each in made.items()}


@pytest.fixture(scope="module")
def two(folder: Path) -> list[Any]:
    made = {
        (family, engine): made_run(folder, family, engine)
        for family in FAMILIES
        for engine in ENGINES
    }
    return run_ranks(all_gradients, 2, made)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, Any]:
    return {family: reference(made_run(folder, family, "ddp")) for family in FAMILIES}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_a_rank_without_images_gets_the_gradient_of_one_process(
    two: list[Any], wanted: Any, family: str, engine: str
) -> None:
    first, second = (rank[family, engine] for rank in two)
    assert [rank["sizes"] for rank in (first, second)] == [[2, 1], [2, 1]]
    assert any("visual" in name for name in wanted[family])
    assert relative_difference(first["gradients"], second["gradients"]) == 0
    assert relative_difference(first["gradients"], wanted[family]) <= TOLERANCE[family]


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "more",
    [(), ("model.gradient_checkpointing=true",), ("lora={rank: 2}",)],
    ids=["plain", "recomputed", "adapters"],
)
def test_a_tower_that_computes_nan_leaves_zeros_on_an_engine_too(
    folder: Path, engine: str, more: tuple[str, ...]
) -> None:
    """Weights are shared out, gathered and freed around the views of them that the dummy computes
    with.
    """
    made = made_run(folder, "qwen3_vl", engine, *more)
    opened, _ = session(made)
    visual = opened.engine.module.model.visual  # type: ignore[union-attr]
    rows = opened.rows["train"]
    batch = collate([rows.sample(0), rows.sample(2)], rows.processor)
    assert not batch.images

    def taken(*, dummy: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        opened.engine.module.zero_grad(set_to_none=True)
        sums = opened.engine.forward_backward(
            [batch], micro_batch_nll(opened, dummy=dummy), batch.supervised, every_parameter=dummy
        )
        return sums, gradients(opened.engine.module)

    with torch.no_grad():
        for parameter in visual.blocks[0].parameters():
            parameter.fill_(torch.nan)
    sums, plain = taken(dummy=False)
    same, ours = taken(dummy=True)
    assert torch.equal(sums, same)
    tower = {
        name
        for name, parameter in opened.engine.module.named_parameters()
        if "visual" in name and parameter.requires_grad
    }
    assert ours.keys() - plain.keys() == tower
    for name, gradient in ours.items():
        assert torch.equal(
            gradient, torch.zeros_like(gradient) if name in tower else plain[name]
        ), name


@pytest.mark.parametrize(
    "name", [name for name, facts in FAMILIES.items() if not facts.on_megatron]
)
def test_megatron_refuses_a_family_whose_layers_it_does_not_have(name: str) -> None:
    """Whoever comes past the rules of settings: the engine sees the model itself."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from vtool.engines.megatron.engine import MegatronEngine

    settings = schema.Megatron(kind="megatron")
    with pytest.raises(SharedFindings) as caught:
        MegatronEngine(
            tiny_model(name),
            settings,
            Optim(lr=1e-3),
            Ranks(),
            torch.float32,
            load_family(name).component,
        )
    (finding,) = caught.value.diagnostics
    assert (finding.rule, finding.parameter) == ("not-built-on-engine", "engine.kind")
    assert name in finding.message
