"""Each word of other trainers: what a message answers, and where a converted recipe has it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool
from vtool.config.foreign.convert import as_recipe
from vtool.config.foreign.trainers import TRAINERS
from vtool.config.foreign.verl_settings import verl_names
from vtool.config.foreign.words import WORDS
from vtool.config.load import examine, examine_foreign, read_foreign
from vtool.diagnostics import Diagnostic

ADAPTERS = {"trl": "use_peft: true", "llamafactory": "finetuning_type: lora", "ms-swift": ""}
EVALUATED = {
    "trl": "dataset_name: rows.jsonl\neval_strategy: steps",
    "llamafactory": "val_size: 0.1\neval_strategy: steps",
    "ms-swift": "split_dataset_ratio: 0.1",
}
# By word: a value that is not the default of any, what it needs beside it, our setting, its value.
ARRIVES: dict[str, tuple[str, str, str, Any]] = {
    "per_device_train_batch_size": ("3", "", "data.micro_batch_size", 3),
    "gradient_accumulation_steps": (
        "5",
        "per_device_train_batch_size: 2",
        "data.global_batch_size",
        10,
    ),
    "per_device_eval_batch_size": ("7", "EVALUATED", "evaluation.batch_size", 7),
    "auto_find_batch_size": ("true", "", "data.micro_batch_size", "auto"),
    "dataloader_num_workers": ("3", "", "data.workers", 3),
    "num_train_epochs": ("2.5", "", "train.epochs", 2.5),
    "max_steps": ("70", "", "train.steps", 70),
    "learning_rate": ("3.0e-4", "", "optim.lr", 3e-4),
    "weight_decay": ("0.2", "", "optim.weight_decay", 0.2),
    "enable_thinking": (
        "false",
        "",
        "data.template_arguments",
        {"enable_thinking": False},
    ),
    "chat_template_path": ("own.jinja", "", "data.chat_template", "own.jinja"),
    "adam_beta1": ("0.8", "", "optim.betas", [0.8, None]),
    "adam_beta2": ("0.7", "", "optim.betas", [None, 0.7]),
    "adam_epsilon": ("1.0e-6", "", "optim.eps", 1e-6),
    "max_grad_norm": ("0.3", "", "optim.clip_norm", 0.3),
    "optim": ("adamw_torch_8bit", "", "optim.states", "8bit"),
    "lr_scheduler_type": ("constant_with_warmup", "", "optim.schedule", "constant"),
    "lr_scheduler_kwargs": (
        "{min_lr_rate: 0.1}",
        "lr_scheduler_type: cosine_with_min_lr",
        "optim.min_lr_ratio",
        0.1,
    ),
    "warmup_ratio": ("0.07", "", "optim.warmup_ratio", 0.07),
    "warmup_steps": ("9", "", "optim.warmup_steps", 9),
    "vit_lr": ("1.0e-6", "", "optim.groups.vision.lr", 1e-6),
    "aligner_lr": ("2.0e-6", "", "optim.groups.projector.lr", 2e-6),
    "model": ("here", "", "model.path", "here"),
    "model_name_or_path": ("here", "", "model.path", "here"),
    "model_type": ("qwen3_vl", "model: gone/away", "model.family", "qwen3_vl"),
    "model_revision": ("v1", "", "model.revision", "v1"),
    "torch_dtype": ("float32", "bf16: false", "model.dtype", "float32"),
    "dtype": ("float32", "bf16: false", "model.dtype", "float32"),
    "bf16": ("true", "", "model.dtype", "bfloat16"),
    "pure_bf16": ("true", "", "model.dtype", "bfloat16"),
    "attn_impl": ("flash_attn", "", "model.attention", "flash_attention_2"),
    "attn_implementation": ("eager", "", "model.attention", "eager"),
    "flash_attn": ("fa2", "", "model.attention", "flash_attention_2"),
    "gradient_checkpointing": ("true", "", "model.gradient_checkpointing", True),
    "disable_gradient_checkpointing": ("true", "", "model.gradient_checkpointing", False),
    "freeze_vit": ("false", "", "model.freeze.vision", False),
    "freeze_aligner": ("false", "", "model.freeze.projector", False),
    "freeze_llm": ("true", "", "model.freeze.language", True),
    "freeze_vision_tower": ("false", "", "model.freeze.vision", False),
    "freeze_multi_modal_projector": ("false", "", "model.freeze.projector", False),
    "freeze_language_model": ("true", "", "model.freeze.language", True),
    "load_in_4bit": ("true", "ADAPTERS", "lora.base_dtype", "nf4"),
    "quantization_bit": ("4", "ADAPTERS", "lora.base_dtype", "nf4"),
    "quant_bits": ("4", "quant_method: bnb", "lora.base_dtype", "nf4"),
    "quant_method": ("bnb", "quant_bits: 4", "lora.base_dtype", "nf4"),
    "use_peft": ("true", "", "lora.rank", 16),
    "finetuning_type": ("lora", "", "lora.rank", 8),
    "tuner_type": ("lora", "", "lora.rank", 8),
    "train_type": ("lora", "", "lora.rank", 8),
    "lora_r": ("5", "ADAPTERS", "lora.rank", 5),
    "lora_rank": ("5", "ADAPTERS", "lora.rank", 5),
    "lora_alpha": ("11", "ADAPTERS", "lora.alpha", 11),
    "lora_dropout": ("0.2", "ADAPTERS", "lora.dropout", 0.2),
    "use_dora": ("true", "ADAPTERS", "lora.dora", True),
    "use_rslora": ("true", "ADAPTERS", "lora.rslora", True),
    "lora_target": ("q_proj,v_proj", "ADAPTERS", "lora.targets", ["q_proj", "v_proj"]),
    "lora_target_modules": ("[q_proj]", "ADAPTERS", "lora.targets", ["q_proj"]),
    "target_modules": ("[q_proj]", "ADAPTERS", "lora.targets", ["q_proj"]),
    "additional_target": ("merger", "ADAPTERS", "lora.modules_to_save", ["merger"]),
    "modules_to_save": ("[merger]", "ADAPTERS", "lora.modules_to_save", ["merger"]),
    "lora_modules_to_save": ("[merger]", "ADAPTERS", "lora.modules_to_save", ["merger"]),
    "adapter_name_or_path": ("here", "ADAPTERS", "train.from", "here"),
    "adapters": ("[here]", "ADAPTERS", "train.from", "here"),
    "dataset_dir": (
        "here",
        "dataset: mine",
        "data.train",
        [{"format": "llama_factory", "path": "here/dataset_info.json", "dataset": "mine"}],
    ),
    "dataset_name": ("rows.jsonl", "", "data.train", [{"format": "trl", "path": "rows.jsonl"}]),
    "val_dataset": (
        "rows.jsonl",
        "",
        "data.validation",
        [{"format": "swift", "path": "rows.jsonl"}],
    ),
    "val_size": ("0.2", "", "data.split.validation", 0.2),
    "split_dataset_ratio": ("0.2", "", "data.split.validation", 0.2),
    "test_split_size": ("0.2", "", "data.split.validation", 0.2),
    "cutoff_len": ("99", "", "data.max_length", 99),
    "max_length": ("99", "", "data.max_length", 99),
    "max_seq_length": ("99", "", "data.max_length", 99),
    "truncation_strategy": ("right", "max_length: 99", "data.on_overlong", "truncate"),
    "packing": ("true", "LENGTH", "data.packing", "token_budget"),
    "neat_packing": ("true", "LENGTH", "data.packing", "token_budget"),
    "padding_free": ("true", "LENGTH", "data.packing", "token_budget"),
    "packing_length": (
        "77",
        "packing: true\nper_device_train_batch_size: 1",
        "data.micro_batch_tokens",
        77,
    ),
    "image_max_pixels": ("999", "", "data.image.max_pixels", 999),
    "image_min_pixels": ("99", "", "data.image.min_pixels", 99),
    "max_pixels": ("999", "", "data.image.max_pixels", 999),
    "video_max_pixels": ("999", "", "data.video.max_pixels", 999),
    "video_min_pixels": ("99", "", "data.video.min_pixels", 99),
    "video_maxlen": ("9", "", "data.video.max_frames", 9),
    "video_fps": ("3.0", "", "data.video.fps", 3.0),
    "load_from_cache_file": ("true", "", "data.audit_cache", "use"),
    "overwrite_cache": ("true", "", "data.audit_cache", "renew"),
    "output_dir": ("out/mine", "", "run.dir", "out/mine"),
    "run_name": ("mine", "", "run.name", "mine"),
    "seed": ("7", "", "run.seed", 7),
    "data_seed": ("8", "", "run.seed", 8),
    "report_to": ("[wandb]", "", "tracking", [{"kind": "wandb"}]),
    "project": (
        "mine",
        "report_to: [trackio]",
        "tracking",
        [{"kind": "trackio", "project": "mine"}],
    ),
    "save_steps": ("70", "", "checkpoint.every_steps", 70),
    "save_strategy": ("'no'", "", "checkpoint.every_steps", None),
    "save_total_limit": ("4", "", "checkpoint.keep_last", 4),
    "eval_steps": ("30", "EVALUATED", "evaluation.every_steps", 30),
    "eval_strategy": ("steps", "EVALUATED\neval_steps: 20", "evaluation.every_steps", 20),
    "evaluation_strategy": ("steps", "EVALUATED\neval_steps: 20", "evaluation.every_steps", 20),
    "load_best_model_at_end": (
        "true",
        "EVALUATED",
        "checkpoint.keep_best.metric",
        "validation_nll",
    ),
    "metric_for_best_model": (
        "eval_mean_token_accuracy",
        "EVALUATED\nload_best_model_at_end: true",
        "checkpoint.keep_best.metric",
        "validation_token_accuracy",
    ),
    "greater_is_better": (
        "true",
        "EVALUATED\nload_best_model_at_end: true",
        "checkpoint.keep_best.mode",
        "max",
    ),
    "early_stopping_steps": ("3", "EVALUATED", "evaluation.early_stopping.patience", 3),
    "early_stop_interval": ("3", "EVALUATED", "evaluation.early_stopping.patience", 3),
    "max_new_tokens": ("17", "EVALUATED", "evaluation.generate.max_new_tokens", 17),
    "deepspeed": ("zero3_offload", "", "engine.cpu_offload", True),
    "fsdp": ("shard_grad_op offload", "", "engine.reshard_after_forward", False),
    "use_cpu": ("true", "", "device.kind", "cpu"),
    "ddp_bucket_cap_mb": ("50", "", "engine.bucket_cap_mb", 50),
}
DATASETS = {
    "llamafactory": (
        "mine",
        [{"format": "llama_factory", "path": "data/dataset_info.json", "dataset": "mine"}],
    ),
    "ms-swift": ("rows.jsonl#5", [{"format": "swift", "path": "rows.jsonl", "limit": 5}]),
}
EARLIER = {"evaluation_strategy": "eval_strategy"}
TWO = "dataset: a,b\n"
# Settings that have an answer, and no value of their own that could be taken over.
NEAREST = {
    *("group_by_length", "use_galore", "use_apollo", "use_badam", "use_muon", "use_adam_mini"),
    *("optimizer", "trust_remote_code", "gradient_checkpointing_kwargs", "use_reentrant_gc"),
    *("vit_gradient_checkpointing", "fp16", "quantization_type", "bnb_4bit_quant_type"),
    *("datasets", "dataset_train_split", "dataset_test_split", "dataset_config", "columns"),
    *("dataset_text_field", "dataset_kwargs", "mix_strategy", "stopping_strategy"),
    *("truncation_mode", "packing_strategy", "preprocessing_num_workers", "dataset_num_proc"),
    *("use_swanlab", "logging_dir", "overwrite_output_dir", "resume_from_checkpoint"),
    *("predict_with_generate", "fsdp_config", "do_eval", "stage", "enable_torch_profiler"),
}
# What is tested for itself, below.
ELSEWHERE = {"dataset", "eval_dataset", "max_samples", "media_dir", "interleave_probs"} | {
    "interleave_prob"
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("here", "data"):
        Path(folder).mkdir()
        Path(folder, "dataset_info.json").write_text('{"mine": {}, "a": {}, "b": {}}')
    Path("here/config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    Path("rows.jsonl").touch()


def written(trainer: str, text: str) -> tuple[dict[str, Any], str]:
    """Return the values of a converted recipe, and its text."""
    Path("theirs.yaml").write_text(text)
    reading = read_foreign(Path("theirs.yaml"), trainer)
    return dict(reading.composed.values), as_recipe(reading, trainer)


def at(values: Any, name: str) -> Any:
    for key in name.split("."):
        values = values[key]
    return values


def of_trainers() -> list[tuple[str, str]]:
    found = []
    for word, known in WORDS.items():
        if known.ours is not None:
            found += [
                (name, word)
                for name, trainer in TRAINERS.items()
                if (word in trainer.fields or trainer.successor(word))
                and (name, word) != ("llamafactory", "max_length")  # of what it generates
            ]
    return found


def test_every_word_with_a_counterpart_is_one_of_these() -> None:
    assert {word for _, word in of_trainers()} == {*ARRIVES, *NEAREST, *ELSEWHERE}


@pytest.mark.parametrize(
    ("trainer", "word"), [pair for pair in of_trainers() if pair[1] in ARRIVES]
)
def test_a_setting_arrives_in_the_recipe_that_is_converted(trainer: str, word: str) -> None:
    value, more, ours, expected = ARRIVES[word]
    length = TRAINERS[trainer].length_word
    beside = (
        more.replace("ADAPTERS", ADAPTERS[trainer])
        .replace("EVALUATED", EVALUATED[trainer])
        .replace("LENGTH", f"{length}: 64")
    )
    beside = "\n".join(
        line
        for line in beside.splitlines()
        if line and line.partition(":")[0] not in (word, EARLIER.get(word))
    )
    if word == "deepspeed" and trainer != "ms-swift":
        offload = {"stage": 3, "offload_param": {"device": "cpu"}}
        Path("zero3.json").write_text(json.dumps({"zero_optimization": offload}))
        value = "zero3.json"
    values, text = written(trainer, f"{beside}\n{word}: {value}\n")
    found = at(values, ours)
    if isinstance(expected, list) and None in expected:  # of two, the other is the default
        found = [
            one if known is not None else None for one, known in zip(found, expected, strict=True)
        ]
    assert found == expected
    assert f"# {word}: " not in text


@pytest.mark.parametrize(
    ("trainer", "word"), [pair for pair in of_trainers() if pair[1] in NEAREST]
)
def test_what_does_not_arrive_stays_in_a_comment(trainer: str, word: str) -> None:
    values = {"stage": "dpo", "fsdp_config": "{x: 1}", "fp16": "true"}
    lists = {"columns": "{a: b}", "dataset_kwargs": "{a: b}", "datasets": "[{path: x}]"}
    default = TRAINERS[trainer].fields[word]
    other = "false" if default is True else "'17'"
    _, text = written(trainer, f"{word}: {({**values, **lists}).get(word, other)}\n")
    assert f"# {word}: " in text or "there [{'path'" in text


@pytest.mark.parametrize("trainer", DATASETS)
def test_rows_that_are_here_arrive(trainer: str) -> None:
    named, expected = DATASETS[trainer]
    assert written(trainer, f"dataset: {named}\n")[0]["data"]["train"] == expected
    if trainer == "llamafactory":
        assert written(trainer, f"eval_dataset: {named}\n")[0]["data"]["validation"] == expected


def test_how_much_of_each_source_is_taken_arrives() -> None:
    text = f"{TWO}max_samples: 9\nmedia_dir: here\ninterleave_probs: 0.3,0.7\n"
    values, comments = written("llamafactory", f"{text}mix_strategy: interleave_under\n")
    assert [
        (one["weight"], one["limit"], one["image_folder"]) for one in values["data"]["train"]
    ] == [(0.3, 9, "here"), (0.7, 9, "here")]
    assert "Not said here" not in comments
    # there, rows of the smaller source come again: no weight means that
    values, comments = written("llamafactory", f"{text}mix_strategy: interleave_over\n")
    assert "weight" not in values["data"]["train"][0]
    assert "# interleave_probs: " in comments
    Path("more.jsonl").touch()
    both = "dataset: [rows.jsonl, more.jsonl]\ninterleave_prob: [0.4, 0.6]\n"
    values, _ = written("ms-swift", both)
    assert [one["weight"] for one in values["data"]["train"]] == [0.4, 0.6]


def test_a_norm_that_is_not_clipped_there_is_not_clipped_here() -> None:
    for trainer in TRAINERS:
        for off in ("0", "0.0", "null"):
            values, _ = written(trainer, f"max_grad_norm: {off}\n")
            assert values["optim"]["clip_norm"] is None


def test_a_constant_rate_has_no_warm_up_there_and_none_here() -> None:
    text = "lr_scheduler_type: constant\nwarmup_steps: 10\n"
    values, _ = written("trl", text)
    assert values["optim"]["warmup_steps"] == 0
    found = run_vtool(Path(), "validate-config", "--from", "trl", "theirs.yaml")
    assert (
        "warmup_steps is 10, but lr_scheduler_type constant has no warm-up"
        in found.stderr + found.stdout
    )


def test_rows_to_evaluate_on_that_are_not_here_are_left_open_and_their_settings_kept() -> None:
    for trainer, text, there in (
        ("ms-swift", "val_dataset: org/rows\neval_steps: 7\n", "there org/rows"),
        ("trl", "dataset_name: org/rows\neval_strategy: steps\neval_steps: 7\n", "the split test"),
    ):
        values, comments = written(trainer, text)
        assert values["evaluation"]["every_steps"] == 7
        line = next(line for line in comments.splitlines() if "validation: ???" in line)
        assert there in line
        done = run_vtool(Path(), "validate-config", "--from", trainer, "theirs.yaml")
        assert "error[evaluation-without-data" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl"),
        ("Qwen/Qwen2-VL-2B-Instruct", "qwen2_vl"),
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_moe"),
        ("THUDM/GLM-4.1V-9B-Thinking", "glm4v"),
        ("org/unheard-of", None),
    ],
)
def test_a_model_that_is_not_here_is_said_as_that_and_keeps_its_name(
    name: str, family: str | None
) -> None:
    for trainer, text in (
        ("trl", f"model_name_or_path: {name}\nassistant_only_loss: true\nmax_length: null\n"),
        ("llamafactory", f"model_name_or_path: {name}\ndo_train: true\n"),
        ("ms-swift", f"model: {name}\ndataset: rows.jsonl\n"),
        ("verl", f"model: {{path: {name}}}\ndata: {{train_files: rows.jsonl}}\n"),
    ):
        values, converted = written(trainer, text)
        assert f'  path: "{name}"  # on a hub' in converted, trainer
        assert values["model"].get("family") == family
        done = run_vtool(Path(), "validate-config", "--from", trainer, "theirs.yaml")
        assert done.status == 0
        said = " ".join((done.stdout + done.stderr).split())
        assert f"{name} is no folder here, and no model in the cache of the hub" in said
        assert f"help: hf download {name}; or give its folder: model.path=FOLDER" in said
        assert "no counterpart" not in said


def test_a_revision_of_a_model_that_is_not_here_is_no_mistake() -> None:
    text = "model_name_or_path: org/unheard-of\nmodel_revision: main\ndo_train: true\n"
    Path("theirs.yaml").write_text(text)
    done = run_vtool(Path(), "validate-config", "--from", "llamafactory", "theirs.yaml")
    assert done.status == 0
    said = done.stdout + done.stderr
    assert "help: hf download org/unheard-of --revision main; or give its folder" in said
    assert "error" not in said


ANSWERED = [(word, known.ours) for word, known in WORDS.items() if known.ours]
BATCH = 8
"""The words of other trainers inside of one unknown group that are answered."""


def helps(findings: Iterable[Diagnostic]) -> list[str]:
    return [one.help or "" for one in findings if one.severity == "error"]


def is_named(ours: str, said: list[str]) -> bool:
    return any(f"`{ours}`" in help or f"`{ours}=" in help for help in said)


@pytest.mark.parametrize("start", range(0, len(ANSWERED), BATCH))
def test_the_answer_to_an_unknown_key_is_its_counterpart(start: int) -> None:
    words = ANSWERED[start : start + BATCH]
    inner = ", ".join(f"{word}: x" for word, _ in words)
    for text in (
        "\n".join(f"{word}: x" for word, _ in words),
        f"trainer: {{{inner}, other: 1}}",
        f"training_args: {{inner: {{{inner}}}}}",
    ):
        Path("mine.yaml").write_text(f"defaults: [digits]\n{text}\n")
        said = helps(examine("mine.yaml").findings)
        assert [ours for _, ours in words if not is_named(ours, said)] == [], text
    for above in ("", "trainer.", "evaluation."):
        given = [f"{above}{word}=x" for word, ours in words if not ours.startswith(above or " ")]
        said = helps(examine("digits", given).findings)
        meant = [ours for _, ours in words if not ours.startswith(above or " ")]
        assert [ours for ours in meant if not is_named(ours, said)] == [], given


@pytest.mark.parametrize("start", range(0, len(ANSWERED), BATCH))
def test_a_word_in_another_group_of_ours_is_answered_too(start: int) -> None:
    words = ANSWERED[start : start + BATCH]
    for group in ("optim", "model"):
        inside = [(word, ours) for word, ours in words if not ours.startswith(group)]
        inner = ", ".join(f"{word}: x" for word, _ in inside)
        Path("mine.yaml").write_text(f"defaults: [digits]\n{group}: {{{inner}}}\n")
        said = helps(examine("mine.yaml").findings)
        assert [ours for _, ours in inside if not is_named(ours, said)] == []


def test_a_group_that_is_only_misspelt_is_answered_by_its_name() -> None:
    Path("mine.yaml").write_text("defaults: [digits]\ndat: {workers: 1, packing: none}\n")
    assert helps(examine("mine.yaml").findings) == ["did you mean `data`?"]
    Path("mine.yaml").write_text("defaults: [digits]\noptimizer: {lr: 1}\n")
    assert helps(examine("mine.yaml").findings) == ["did you mean `optim`?"]


def test_a_name_with_dots_in_a_file_is_answered_by_our_groups() -> None:
    Path("mine.yaml").write_text("defaults: [digits]\ntrainer.save_freq: 3\n")
    assert helps(examine("mine.yaml").findings) == [
        "in a file, groups are nested: `checkpoint: {every_steps: …}`"
    ]


def test_a_word_that_is_a_group_of_ours_is_answered_by_what_is_in_it() -> None:
    Path("mine.yaml").write_text("defaults: [digits]\nmodel: Qwen/Qwen2.5-VL-3B-Instruct\n")
    wanted = ["did you mean `model.path=Qwen/Qwen2.5-VL-3B-Instruct`?"]
    assert helps(examine("mine.yaml").findings) == wanted
    assert helps(examine("digits", ["model=Qwen/Qwen2.5-VL-3B-Instruct"]).findings) == wanted


@pytest.mark.parametrize("value", ["[1, {a: b}]", "{a: b}", "x", "-1", "1.5", "'4'", "[]", "true"])
def test_no_value_of_any_word_ends_in_a_traceback(value: str) -> None:
    for trainer in TRAINERS:
        for number in (0, 1):  # with and without what makes the others count
            more = f"{ADAPTERS[trainer]}\n{EVALUATED[trainer]}\n" if number else ""
            words = [word for name, word in of_trainers() if name == trainer]
            text = "".join(f"{word}: {value}\n" for word in words if f"{word}:" not in more)
            written(trainer, more + text)
            examine_foreign(Path("theirs.yaml"), trainer=trainer)
    groups: dict[str, list[str]] = {}
    for name in sorted(verl_names()):
        group, _, last = name.partition(".")
        if last and "." not in last:
            groups.setdefault(group, []).append(f"{last}: {value}")
    for strategy in ("fsdp", "megatron"):
        text = "\n".join(f"{group}: {{{', '.join(inner)}}}" for group, inner in groups.items())
        written("verl", text.replace(f"strategy: {value}", f"strategy: {strategy}"))
        examine_foreign(Path("theirs.yaml"), trainer="verl")
