"""Each setting of verl's SFT trainer that vtool has: where a converted recipe has it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vtool.config.foreign.convert import as_recipe
from vtool.config.foreign.more_words import VERL_WORDS
from vtool.config.foreign.verl_settings import FSDP, LORA, MEGATRON, MEGATRON_LORA, RUN
from vtool.config.load import examine_foreign, read_foreign


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.parquet").touch()


# By name: a value that is not verl's default, what it needs beside it, our setting, its value.
ARRIVES: dict[str, tuple[Any, dict[str, Any], str, Any]] = {
    "model.path": ("here", {}, "model.path", "here"),
    "model.enable_gradient_checkpointing": (False, {}, "model.gradient_checkpointing", False),
    "data.train_files": (
        ["rows.parquet"],
        {},
        "data.train",
        [{"format": "messages", "path": "rows.parquet"}],
    ),
    "data.val_files": (
        "rows.parquet",
        {},
        "data.validation",
        [{"format": "messages", "path": "rows.parquet"}],
    ),
    "data.train_batch_size": (7, {}, "data.global_batch_size", 7),
    "data.max_length": (77, {}, "data.max_length", 77),
    "data.num_workers": (3, {}, "data.workers", 3),
    "data.truncation": ("right", {"data.pad_mode": "right"}, "data.on_overlong", "truncate"),
    "data.micro_batch_size_per_gpu": (
        2,
        {"data.use_dynamic_bsz": False},
        "data.micro_batch_size",
        2,
    ),
    "data.use_dynamic_bsz": (True, {}, "data.packing", "token_budget"),
    "data.max_token_len_per_gpu": (4096, {}, "data.micro_batch_tokens", 4096),
    "data.train_max_samples": (
        9,
        {"data.train_files": "rows.parquet"},
        "data.train",
        [{"format": "messages", "path": "rows.parquet", "limit": 9}],
    ),
    "data.val_max_samples": (
        9,
        {"data.val_files": "rows.parquet"},
        "data.validation",
        [{"format": "messages", "path": "rows.parquet", "limit": 9}],
    ),
    "trainer.experiment_name": ("mine", {}, "run.name", "mine"),
    "trainer.default_local_dir": ("out", {}, "run.dir", "out"),
    "trainer.save_freq": (7, {}, "checkpoint.every_steps", 7),
    "trainer.test_freq": (7, {}, "evaluation.every_steps", 7),
    "trainer.max_ckpt_to_keep": (3, {}, "checkpoint.keep_last", 3),
    "trainer.device": ("npu", {}, "device.kind", "npu"),
    "trainer.total_epochs": (3, {}, "train.epochs", 3),
    "trainer.total_training_steps": (33, {}, "train.steps", 33),
    "trainer.resume_mode": ("disable", {}, "checkpoint.resume", "never"),
    "trainer.resume_from_path": (
        "there",
        {"trainer.resume_mode": "resume_path"},
        "checkpoint.resume",
        "there",
    ),
    "trainer.logger": (["console", "wandb"], {}, "tracking", [{"kind": "wandb"}]),
    "trainer.project_name": (
        "ours",
        {"trainer.logger": ["wandb", "mlflow"]},
        "tracking",
        [{"kind": "wandb", "project": "ours"}, {"kind": "mlflow", "experiment": "ours"}],
    ),
    "trainer.profile_interval": (
        [5, 7],
        {"profiler.enable": True},
        "profiler.profile_interval",
        [5, 7],
    ),
    "optim.lr": (2e-5, {}, "optim.lr", 2e-5),
    "optim.betas": ([0.8, 0.9], {}, "optim.betas", [0.8, 0.9]),
    "optim.weight_decay": (0.2, {}, "optim.weight_decay", 0.2),
    "optim.clip_grad": (0.3, {}, "optim.clip_norm", 0.3),
    "optim.lr_warmup_steps": (9, {}, "optim.warmup_steps", 9),
    "optim.lr_warmup_steps_ratio": (0.07, {}, "optim.warmup_ratio", 0.07),
    "optim.optimizer": ("AdamW8bit", {}, "optim.states", "8bit"),
    "optim.min_lr_ratio": (0.1, {"optim.lr_scheduler_type": "cosine"}, "optim.min_lr_ratio", 0.1),
    "optim.lr_scheduler_type": ("cosine", {}, "optim.schedule", "cosine"),
    "optim.warmup_style": ("cosine", {}, "optim.schedule", "cosine"),
    "optim.lr_decay_style": (
        "linear",
        {"engine.strategy": "megatron"},
        "optim.schedule",
        "linear",
    ),
    "optim.min_lr": (
        1e-6,
        {"engine.strategy": "megatron", "optim.lr": 1e-5},
        "optim.min_lr_ratio",
        pytest.approx(0.1),
    ),
    "engine.dtype": ("bfloat16", {"engine.strategy": "megatron"}, "model.dtype", "bfloat16"),
    "engine.mixed_precision": ({"param_dtype": "fp32"}, {}, "model.dtype", "float32"),
    "engine.strategy": ("megatron", {}, "engine.kind", "megatron"),
    "engine.reshard_after_forward": (False, {}, "engine.reshard_after_forward", False),
    "engine.offload_policy": (True, {}, "engine.cpu_offload", True),
    "engine.tensor_model_parallel_size": (2, {}, "engine.parallel.tensor", 2),
    "engine.pipeline_model_parallel_size": (2, {}, "engine.parallel.pipeline", 2),
    "engine.context_parallel_size": (2, {}, "engine.parallel.context", 2),
    "engine.sequence_parallel": (
        False,
        {"engine.tensor_model_parallel_size": 2},
        "engine.parallel.sequence",
        False,
    ),
    "engine.use_distributed_optimizer": (
        False,
        {"engine.strategy": "megatron"},
        "engine.wrap_config.use_distributed_optimizer",
        False,
    ),
    "model.lora_rank": (8, {}, "lora.rank", 8),
    "model.lora_alpha": (9, {"model.lora_rank": 8}, "lora.alpha", 9),
    "model.target_modules": (["q_proj"], {"model.lora_rank": 8}, "lora.targets", ["q_proj"]),
    "model.exclude_modules": (["q_proj"], {"model.lora_rank": 8}, "lora.exclude", ["q_proj"]),
    "model.lora_adapter_path": ("here", {"model.lora_rank": 8}, "train.from", "here"),
    "model.lora.rank": (8, {"engine.strategy": "megatron"}, "lora.rank", 8),
    "model.lora.alpha": (
        9,
        {"engine.strategy": "megatron", "model.lora.rank": 8},
        "lora.alpha",
        9,
    ),
    "model.lora.dropout": (
        0.1,
        {"engine.strategy": "megatron", "model.lora.rank": 8},
        "lora.dropout",
        0.1,
    ),
}


@pytest.mark.parametrize("name", ARRIVES)
def test_a_setting_arrives_in_the_recipe_that_is_converted(name: str) -> None:
    Path("here").mkdir()
    Path("here/config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    given, beside, ours, expected = ARRIVES[name]
    tree: dict[str, Any] = {}
    for dotted, value in (beside | {name: given}).items():
        *groups, last = dotted.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    Path("theirs.yaml").write_text(yaml.safe_dump(tree))
    reading = read_foreign(Path("theirs.yaml"), "verl")
    found: Any = reading.composed.values
    for key in ours.split("."):
        found = found[key]
    assert found == expected
    assert f"# {name}: " not in as_recipe(reading, "verl")


def test_every_setting_of_a_table_and_every_word_is_one_of_these() -> None:
    tables = {same.theirs for table in (RUN, LORA, MEGATRON_LORA, FSDP, MEGATRON) for same in table}
    assert tables <= ARRIVES.keys()
    ends = {name.rpartition(".")[2] for name in ARRIVES}
    # of earlier releases, of groups that go through as they are, and of what nothing reads there
    others = {"partial_pretrain", "warmup_steps_ratio", "n_gpus_per_node"}
    assert VERL_WORDS.keys() - ends == others | {
        "override_ddp_config",
        "override_transformer_config",
    }


def test_a_share_of_warm_up_is_kept_where_the_run_has_no_number_of_steps() -> None:
    text = "optim: {lr_warmup_steps_ratio: 0.1}\ntrainer: {total_epochs: 3}\n"
    Path("theirs.yaml").write_text(text)
    recipe = as_recipe(read_foreign(Path("theirs.yaml"), "verl"), "verl")
    assert "  warmup_ratio: 0.1  # optim.lr_warmup_steps_ratio\n" in recipe
    findings = examine_foreign(Path("theirs.yaml"), trainer="verl").findings
    assert [one.rule for one in findings] == []
