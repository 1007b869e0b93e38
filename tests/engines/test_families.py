"""Every family on every engine: two ranks, one of them without an image, leave the gradient of one process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engines.ranks import run_ranks
from tests.engines.test_exactness import reference, step_gradients
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, relative_difference, request
from vtool.engines.ranks import Ranks
from vtool.models.families import FAMILIES
from vtool.training.setup import Request

ENGINES = ("ddp", "fsdp2")
ROWS = 6
# Without special kernels the gated delta rule is computed in float32, whatever the model's dtype.
TOLERANCE = dict.fromkeys(FAMILIES, 1e-12) | {"qwen3_5": 1e-6}


def made_run(folder: Path, family: str, engine: str) -> Request:
    """One step of 6 rows, at most two a micro-batch, of which a single one has images: two."""
    overrides = [
        messages(folder / "rows.jsonl"),
        *(f"data.global_batch_size={ROWS}", "data.micro_batch_size=2", "data.image={min_pixels:784,max_pixels:4096}"),
        *(f"model.family={family}", "model.dtype=float64", f"engine={engine}", f"run.dir={folder / family / engine}"),
        "optim.warmup_steps=0",
    ]
    return request("rows", *overrides)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("families")
    write_rows(made / "rows.jsonl", mixed_rows(made, ROWS, text_only=(0, 1, 2, 3, 5)))
    return made


def all_gradients(ranks: Ranks, made: Mapping[tuple[str, str], Request]) -> dict[tuple[str, str], Any]:
    return {name: step_gradients(ranks, each) for name, each in made.items()}


@pytest.fixture(scope="module")
def two(folder: Path) -> list[Any]:
    made = {(family, engine): made_run(folder, family, engine) for family in FAMILIES for engine in ENGINES}
    return run_ranks(all_gradients, 2, made)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, Any]:
    return {family: reference(made_run(folder, family, "ddp")) for family in FAMILIES}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_without_images_gets_the_gradient_of_one_process(two: list[Any], wanted: Any, family: str, engine: str) -> None:
    first, second = (rank[family, engine] for rank in two)
    assert [rank["sizes"] for rank in (first, second)] == [[2, 1], [2, 1]]
    assert any("visual" in name for name in wanted[family])
    assert relative_difference(first["gradients"], second["gradients"]) == 0
    assert relative_difference(first["gradients"], wanted[family]) <= TOLERANCE[family]
