"""Recognition of a recipe: the public examples of each trainer, and files of nobody."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.foreign.test_hf import STOCK
from vtool.config.foreign.whose import trainer_of
from vtool.config.shipped import shipped_folder

RECIPES = {
    "llamafactory": STOCK["llamafactory"],
    "ms-swift": """\
model: Qwen/Qwen2.5-VL-7B-Instruct
train_type: lora
torch_dtype: bfloat16
attn_impl: flash_attn
lora_rank: 32
lora_alpha: 64
dataset: your-dataset-name
split_dataset_ratio: 0.1
max_length: 8192
num_train_epochs: 3
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1e-4
lr_scheduler_type: cosine
warmup_ratio: 0.05
eval_steps: 500
output_dir: output
""",
    "trl": """\
model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: auto
attn_implementation: flash_attention_2
chat_template: "{% for message in messages %}{% endfor %}"
dataset_mixture: {datasets: [{id: HuggingFaceH4/ultrachat_200k}]}
dataset_num_proc: 12
bf16: true
eval_strategy: epoch
gradient_accumulation_steps: 1
gradient_checkpointing: true
learning_rate: 2.0e-05
lr_scheduler_type: cosine
max_length: 2048
num_train_epochs: 1
output_dir: data/zephyr-7b-sft-full
per_device_train_batch_size: 16
report_to: [tensorboard]
seed: 42
warmup_ratio: 0.1
""",
    "axolotl": """\
base_model: Qwen/Qwen2-VL-7B-Instruct
processor_type: AutoProcessor
skip_prepare_dataset: true
remove_unused_columns: false
sample_packing: false
chat_template: qwen2_vl
datasets:
  - path: HuggingFaceH4/llava-instruct-mix-vsft
    type: chat_template
    split: train[:1%]
val_set_size: 0.0
output_dir: ./outputs/out
adapter: lora
sequence_len: 8192
lora_r: 32
lora_alpha: 16
micro_batch_size: 1
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: true
flash_attention: true
""",
    "verl": """\
defaults:
  - model@model: hf_model
  - engine@engine: fsdp
  - _self_
data: {train_batch_size: 256, micro_batch_size_per_gpu: 4, train_files: train.parquet}
trainer: {project_name: gsm8k-sft, experiment_name: test, total_epochs: 4, save_freq: -1}
""",
}
SMALL = {
    "llamafactory": "{stage: sft, model_name_or_path: x, finetuning_type: lora, template: qwen}",
    "ms-swift": "{model: x, tuner_type: lora, dataset: [y], num_train_epochs: 1}",
    "trl": "{model_name_or_path: x, per_device_train_batch_size: 2, dataset_name: y, lora_r: 4}",
    "axolotl": "{base_model: x, datasets: [{path: y}], adapter: lora, micro_batch_size: 2}",
    "verl": "{model: {partial_pretrain: x}, data: {train_files: y, val_files: z}}",
}
NOBODYS: dict[str, dict[Any, Any]] = {
    "nothing": {},
    "an action": {"name": "ci", True: ["push"], "jobs": {"test": {"runs-on": "ubuntu-latest"}}},
    "a service": {"version": "3", "services": {"web": {"image": "nginx"}}},
    "a model card": {
        "license": "mit",
        "base_model": "x",
        "datasets": ["y"],
        "tags": ["vlm"],
        "language": ["en"],
    },
    "a launch": {"compute_environment": "LOCAL_MACHINE", "num_processes": 4, "debug": False},
    "transformers' own settings": {
        "learning_rate": 1e-4,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "output_dir": "out",
    },
    "lightning": {
        "trainer": {"max_epochs": 3, "devices": 2, "logger": True},
        "model": {"lr": 0.1},
        "data": {"batch_size": 2},
    },
    "kubernetes": {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}},
    "vtool's, with words of others": {
        "defaults": ["digits"],
        "learning_rate": 1,
        "lora_target": "all",
        "cutoff_len": 9,
        "trainer": {"total_epochs": 3, "save_freq": 3},
    },
    "vtool's groups": {
        "model": {"path": "x", "size": None},
        "optim": {"lr": 1e-4},
        "data": {"global_batch_size": 3, "train_files": "x"},
        "num_train_epochs": 3,
        "lora_rank": 8,
        "cutoff_len": 3,
    },
}


def read(text: str) -> dict[Any, Any]:
    values: dict[Any, Any] = yaml.safe_load(text)
    return values


def misspelt(values: dict[Any, Any], wrong: Any) -> dict[Any, Any]:
    """Return a recipe with two letters of one key exchanged."""
    middle = len(wrong) // 2
    typo = wrong[: middle - 1] + wrong[middle] + wrong[middle - 1] + wrong[middle + 1 :]
    return {typo if key == wrong else key: value for key, value in values.items()}


@pytest.mark.parametrize("recipes", [RECIPES, SMALL])
def test_a_recipe_is_known_for_its_trainers(recipes: dict[str, str]) -> None:
    assert {name: trainer_of(read(text)) for name, text in recipes.items()} == {
        name: name for name in recipes
    }


@pytest.mark.parametrize("trainer", ["llamafactory", "ms-swift", "trl", "axolotl"])
def test_a_typo_in_any_key_does_not_hide_whose_it_is(trainer: str) -> None:
    for text in (RECIPES[trainer], SMALL[trainer]):
        values = read(text)
        found = {key: trainer_of(misspelt(values, key)) for key in values}
        assert {key for key, name in found.items() if name != trainer} == set()


def test_a_typo_in_any_key_of_verl_does_not_hide_it() -> None:
    values = read(RECIPES["verl"])
    for group in ("data", "trainer"):
        for key in values[group]:
            assert trainer_of(values | {group: misspelt(values[group], key)}) == "verl"
    assert trainer_of(misspelt(values, "trainer")) == "verl"


def test_recipes_of_verls_other_trainers_are_verls() -> None:
    reinforced = {"actor_rollout_ref": {"model": {"path": "x"}}, "algorithm": {"adv": "grpo"}}
    assert trainer_of(reinforced) == "verl"
    assert trainer_of({"defaults": ["ppo_trainer", "_self_"], **reinforced}) == "verl"


@pytest.mark.parametrize("name", NOBODYS)
def test_what_is_no_recipe_of_theirs_is_nobodys(name: str) -> None:
    assert trainer_of(NOBODYS[name]) is None


def test_no_yaml_file_of_vtool_is_taken_for_one_of_theirs() -> None:
    files = [
        file
        for folder in ("configs", "recipes")
        for file in sorted(Path(shipped_folder(folder)).rglob("*.yaml"))
    ]
    assert len(files) > 20
    for file in files:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert not isinstance(values, dict) or trainer_of(values) is None, file
