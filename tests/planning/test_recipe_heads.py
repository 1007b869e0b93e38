"""The recipes for published models: the plans that their heads say."""

import re
import tempfile
from pathlib import Path

import pytest

from tests.planning.recipe_heads import (
    GPUS,
    MEMORY,
    PUBLISHED,
    RECIPES,
    head,
    model_of_recipe,
    plan_lines,
    renew,
    write_config,
)
from vtool.config.shipped import shipped_folder
from vtool.planning.plan import GIB, OVERHEAD

pytestmark = pytest.mark.usefixtures("no_process_group")


@pytest.mark.full
@pytest.mark.parametrize("model", PUBLISHED)
def test_a_config_of_published_sizes_has_the_published_number_of_parameters(model: str) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    from vtool.models.on_meta import parameters_on_meta

    with tempfile.TemporaryDirectory() as folder, parameters_on_meta():
        write_config(model, Path(folder))
        made = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    assert sum(one.numel() for one in made.parameters()) == PUBLISHED[model]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_head_says_of_1_8_and_24_gpus_what_they_need_and_whether_it_fits(recipe: str) -> None:
    plans = head(recipe)
    assert tuple(plans) == GPUS
    for plan in plans.values():
        assert plan.together == pytest.approx(sum(plan.kinds.values()), abs=0.3)
        assert plan.verdict.startswith("fits") == (plan.together <= MEMORY - OVERHEAD / GIB)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name.endswith("_fsdp2")])
def test_weights_gradients_and_state_of_a_head_are_16_bytes_a_parameter_shared_out(
    recipe: str,
) -> None:
    """AdamW in float32: 4 bytes each, and twice 4 of state."""
    for gpus, plan in head(recipe).items():
        each = PUBLISHED[model_of_recipe(recipe)] / gpus / GIB
        kept = {"weights": 4 * each, "gradients": 4 * each, "optimizer": 8 * each}
        # rows that ranks cannot share out evenly are filled up
        assert {name: plan.kinds[name] for name in kept} == pytest.approx(kept, rel=0.01, abs=0.06)


def test_the_models_fit_where_they_are_meant_to() -> None:
    assert head("qwen2_5_vl_7b_fsdp2")[8].together <= 30
    for recipe, gpus in {
        "qwen2_5_vl_3b_fsdp2": 1,
        "qwen2_5_vl_7b_lora": 1,
        "qwen3_vl_8b_lora": 1,
        "qwen2_5_vl_7b_fsdp2": 8,
        "qwen2_5_vl_32b_lora": 8,
        "qwen2_5_vl_72b_lora": 8,
    }.items():
        assert head(recipe)[gpus].verdict == "fits", recipe
    assert head("qwen2_5_vl_72b_fsdp2")[24].together < MEMORY - OVERHEAD / GIB
    assert head("qwen2_5_vl_72b_fsdp2")[8].verdict == "does not fit"


def test_a_head_is_renewed_in_its_place_and_nothing_else_of_its_recipe_is() -> None:
    recipe = "qwen2_5_vl_7b_lora"
    text = (shipped_folder("recipes") / f"{recipe}.yaml").read_text()
    lines = re.findall(r"^#   --gpus .*$", text, re.M)
    assert renew(recipe, lines) == text
    changed = renew(recipe, ["#   --gpus 2: 1.5, fits (weights 1.5)"])
    assert changed.count("--gpus") == 1
    assert changed.partition("\ndefaults:")[2] == text.partition("\ndefaults:")[2]


def agree(recipe: str, gpus: tuple[int, ...]) -> None:
    """Compare a head with plans made again, to the last digit but one."""
    text = (shipped_folder("recipes") / f"{recipe}.yaml").read_text()
    for line in plan_lines(recipe, gpus):
        planned = next(
            one for one in text.splitlines() if one.startswith(line.partition(":")[0] + ":")
        )
        numbers, others = (
            [float(one) for one in re.findall(r"\d+\.\d", each)] for each in (planned, line)
        )
        assert numbers == pytest.approx(others, abs=0.11), line
        assert re.sub(r"[\d.]+", "", planned) == re.sub(r"[\d.]+", "", line)


@pytest.mark.soak
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("gpus", GPUS)
def test_a_head_is_the_plan_of_its_recipe(recipe: str, gpus: int) -> None:
    agree(recipe, (gpus,))
