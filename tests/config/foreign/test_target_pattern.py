"""Regular expressions that name the layers with an adapter, as peft reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

from tests.commands import run_vtool
from vtool.families import FAMILIES
from vtool.families.linear_layers import select_layers

DEPTHS = {"vision": 4, "language": 6, "projector": 3}
OF_LANGUAGE = r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for family in FAMILIES:
        Path(family).mkdir()
        config = {
            "model_type": family,
            "vision_config": {
                "depth": DEPTHS["vision"],
                "deepstack_visual_indexes": [*range(DEPTHS["projector"])],
            },
            "text_config": {"num_hidden_layers": DEPTHS["language"]},
        }
        Path(family, "config.json").write_text(json.dumps(config))
    Path("rows.jsonl").touch()


def converted(trainer: str, text: str, name: str = "theirs.yaml") -> tuple[dict[str, Any], str]:
    """Return the recipe that is made of one, and the findings that are printed."""
    Path(name).write_text(text)
    command = ("validate-config", "--from", trainer, name)
    return (
        yaml.safe_load(run_vtool(Path.cwd(), *command, "--convert").stdout),
        run_vtool(Path.cwd(), *command).stdout,
    )


def axolotl(pattern: str, family: str = "qwen2_5_vl", more: str = "") -> str:
    return (
        f"base_model: {family}\nprocessor_type: AutoProcessor\nchat_template: qwen2_vl\n"
        f"datasets: [{{path: rows.jsonl, type: chat_template}}]\nadapter: lora\nlora_r: 8\n"
        f"learning_rate: 1.0e-4\nlora_alpha: 16\nlora_target_modules: {json.dumps(pattern)}\n{more}"
    )


def adapted(recipe: dict[str, Any], names: dict[str, list[str]]) -> set[str]:
    """Return the layers to which a recipe of vtool gives an adapter."""
    frozen = {part for part, is_so in recipe["model"].get("freeze", {}).items() if is_so}
    trained = [name for part in names if part not in frozen for name in names[part]]
    return set(select_layers(trained, recipe["lora"]["targets"]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "pattern",
    [
        r"model.language_model.layers.[\d]+.(mlp|self_attn|linear_attn).\w+_proj",
        r".*\.blocks\.\d+\.attn\.(qkv|proj)",
        r"^(?!.*visual).*\.(q_proj|down_proj)$",
        r".*\.(layers|blocks)\.[02]\.(attn|self_attn)\..*",
        r".*(merger|attn).*",
    ],
)
def test_the_layers_are_the_ones_that_peft_adapts(family: str, pattern: str) -> None:
    recipe, said = converted("axolotl", axolotl(pattern, family))
    names = {
        part: [
            name.replace(".N.", f".{number}.")
            for name in layers
            for number in (range(DEPTHS[part]) if ".N." in name else (0,))
        ]
        for part, layers in FAMILIES[family].linear_layers.items()
    }
    theirs = LoraConfig(target_modules=pattern)
    everything = {name for layers in names.values() for name in layers}
    assert adapted(recipe, names) == {
        name for name in everything if check_target_module_exists(theirs, name)
    }
    assert "lora" not in said


def test_axolotls_pattern_of_the_language_model_freezes_the_rest() -> None:
    recipe, said = converted("axolotl", axolotl(OF_LANGUAGE))
    assert recipe["model"]["freeze"] == {"vision": True, "projector": True}
    assert set(recipe["lora"]["targets"]) == {
        f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")
    }
    assert "lora_target_modules" not in said
    Path("ours.yaml").write_text(yaml.safe_dump(recipe))
    done = run_vtool(Path.cwd(), "validate-config", "ours.yaml")
    assert "lora" not in done.stdout


def test_what_is_trained_whole_is_not_frozen() -> None:
    text = axolotl(r".*\.layers\..*\.q_proj", more="lora_modules_to_save: [merger]\n")
    recipe, _ = converted("axolotl", text)
    assert recipe["model"]["freeze"] == {"vision": True}
    assert recipe["lora"]["targets"] == ["q_proj"]


@pytest.mark.parametrize("known", [True, False])
def test_a_pattern_for_a_model_that_is_not_here(known: bool) -> None:
    name = "Qwen/Qwen2.5-VL-3B-Instruct" if known else "somebody/something"
    recipe, said = converted("axolotl", axolotl(OF_LANGUAGE, name))
    if known:
        assert recipe["model"]["freeze"] == {"vision": True, "projector": True}
        return
    assert recipe["lora"]["targets"] == "???"
    assert "warning[no-counterpart VT232]: lora_target_modules is the regular expression" in said
    assert "puts adapters on other layers" in said


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("q_proj", "is the whole name of no linear layer of qwen2_5_vl: peft refuses it"),
        ("((", "is no regular expression"),
        (".*proj", "matches model.visual.patch_embed.proj as well: no adapter is put there here"),
    ],
)
def test_a_pattern_that_means_something_else_is_told(pattern: str, message: str) -> None:
    assert message in converted("axolotl", axolotl(pattern))[1].replace("\n", " ")


def test_ms_swifts_pattern_goes_before_what_it_freezes() -> None:
    text = (
        "swift sft --model qwen2_vl --dataset rows.jsonl --target_modules q_proj"
        r" --target_regex '.*visual.*\.qkv' --freeze_vit true"
    )
    recipe, _ = converted("ms-swift", text, "run.sh")
    assert recipe["model"]["freeze"] == {"vision": False, "projector": True, "language": True}
    assert recipe["lora"]["targets"] == ["qkv"]


def test_trl_makes_a_pattern_of_one_name() -> None:
    text = "trl sft --model_name_or_path qwen2_vl --dataset_name x --use_peft --max_length 64"
    one = f"{text} --lora_target_modules q_proj"
    recipe, said = converted("trl", one, "run.sh")
    assert "peft refuses it" in said
    assert recipe["lora"]["targets"] == ["q_proj"]  # what was meant
    recipe, said = converted("trl", f"{one} v_proj", "run.sh")
    assert recipe["lora"]["targets"] == ["q_proj", "v_proj"]
    assert "peft refuses it" not in said
    recipe, said = converted("trl", f"{text} --lora_target_modules all-linear", "run.sh")
    assert "targets" not in recipe["lora"]


def test_verls_text_is_a_pattern() -> None:
    text = (
        "torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer model.path=qwen2_vl"
        " data.train_files=rows.parquet model.lora_rank=8"
    )
    recipe, _ = converted("verl", rf"{text} 'model.target_modules=.*layers.*[kv]_proj'", "run.sh")
    assert recipe["lora"]["targets"] == ["k_proj", "v_proj"]
    assert recipe["model"]["freeze"] == {"vision": True, "projector": True}
