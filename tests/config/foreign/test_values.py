"""Values that a trainer refuses are errors with their line; what it takes gives no finding."""

from pathlib import Path

import pytest

from vtool.config.foreign.convert import as_recipe
from vtool.config.foreign.known_words import known_words
from vtool.config.load import examine_foreign, read_foreign
from vtool.diagnostics import Diagnostic

# By trainer: healthy lines, one a setting, in another order than the table's.
HEALTHY = {
    "llamafactory": {
        "model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct",
        "stage": "sft",
        "do_train": "true",
        "finetuning_type": "lora",
        "lora_rank": "8",
        "template": "qwen2_vl",
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "1",
        "num_train_epochs": "3.0",
        "learning_rate": "1.0e-4",
        "lr_scheduler_type": "cosine",
        "bf16": "true",
        "report_to": "none",
        "flash_attn": "fa2",
    },
    "trl": {
        "model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct",
        "use_peft": "true",
        "lora_r": "8",
        "lora_target_modules": "all-linear",
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "1",
        "num_train_epochs": "3",
        "learning_rate": "1e-4",
        "lr_scheduler_type": "linear",
        "bf16": "true",
        "dtype": "bfloat16",
        "assistant_only_loss": "true",
        "max_length": "null",
        "optim": "adamw_torch",
    },
    "ms-swift": {
        "model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "dataset": "[rows.jsonl]",
        "tuner_type": "lora",
        "lora_rank": "8",
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "1",
        "num_train_epochs": "1",
        "learning_rate": "1e-4",
        "lr_scheduler_type": "cosine",
        "torch_dtype": "bfloat16",
        "max_length": "2048",
        "truncation_strategy": "delete",
    },
    "axolotl": {
        "base_model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "datasets": "[{path: rows.jsonl, type: chat_template}]",
        "adapter": "lora",
        "lora_r": "8",
        "lora_target_linear": "true",
        "micro_batch_size": "2",
        "gradient_accumulation_steps": "1",
        "num_epochs": "1",
        "learning_rate": "2e-4",
        "optimizer": "adamw_torch",
        "lr_scheduler": "cosine",
        "bf16": "auto",
        "output_dir": "out",
    },
}
REFUSED = [
    ("llamafactory", "per_device_train_batch_size", "abc", None),
    ("llamafactory", "gradient_accumulation_steps", "2.5", None),
    ("llamafactory", "template", "qwen9_vl", "qwen2_vl"),
    ("llamafactory", "bf16", "maybe", None),
    ("llamafactory", "bf16", "ture", "true"),
    ("llamafactory", "finetuning_type", "loraa", "lora"),
    ("llamafactory", "stage", "sfft", "sft"),
    ("llamafactory", "lr_scheduler_type", "cosin", "cosine"),
    ("llamafactory", "flash_attn", "fa22", "fa2"),
    ("llamafactory", "report_to", "wandbb", "wandb"),
    ("llamafactory", "lora_rank", "[8]", None),
    ("trl", "bf16", "maybe", None),
    ("trl", "dtype", "bf1", "bfloat16"),
    ("trl", "num_train_epochs", "one", None),
    ("trl", "lora_r", "eight", None),
    ("trl", "optim", "adamw_toch", "adamw_torch"),
    ("trl", "use_peft", "yess", None),
    ("ms-swift", "tuner_type", "loraa", "lora"),
    ("ms-swift", "torch_dtype", "bf1", "bfloat16"),
    ("ms-swift", "lr_scheduler_type", "cosin", "cosine"),
    ("ms-swift", "truncation_strategy", "delte", "delete"),
    ("ms-swift", "num_train_epochs", "one", None),
    ("axolotl", "adapter", "loraa", "lora"),
    ("axolotl", "adapter", "qlor", "qlora"),
    ("axolotl", "lr_scheduler", "cosin", "cosine"),
    ("axolotl", "optimizer", "adamw_toch", "adamw_torch"),
    ("axolotl", "micro_batch_size", "two", None),
    ("axolotl", "num_epochs", "one", None),
    ("axolotl", "bf16", "maybe", None),
]
ACCEPTED = [
    ("llamafactory", "learning_rate", "'1e-4'"),
    ("llamafactory", "learning_rate", "5.0e-5"),
    ("llamafactory", "bf16", "'true'"),
    ("llamafactory", "bf16", "yes"),
    ("llamafactory", "bf16", "1"),
    ("llamafactory", "report_to", "[wandb, tensorboard]"),
    ("llamafactory", "num_train_epochs", "2"),
    ("trl", "lr_scheduler_type", "warmup_stable_decay"),
    ("trl", "learning_rate", "'2e-5'"),
    ("trl", "use_peft", "'yes'"),
    ("ms-swift", "torch_dtype", "float32"),
    ("axolotl", "bf16", "full"),
    ("axolotl", "lr_scheduler", "rex"),
    ("axolotl", "optimizer", "muon"),
]
ABOUT_VALUES = ("unknown-choice", "wrong-type")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()


def found(trainer: str, lines: dict[str, str]) -> list[Diagnostic]:
    Path("theirs.yaml").write_text("".join(f"{word}: {value}\n" for word, value in lines.items()))
    return list(examine_foreign(Path("theirs.yaml"), trainer=trainer).findings)


def converted(trainer: str) -> str:
    return as_recipe(read_foreign(Path("theirs.yaml"), trainer), trainer)


def errors(findings: list[Diagnostic]) -> list[Diagnostic]:
    return [one for one in findings if one.severity == "error"]


@pytest.mark.parametrize("trainer", HEALTHY)
def test_a_healthy_recipe_has_no_error(trainer: str) -> None:
    assert not errors(found(trainer, HEALTHY[trainer]))


@pytest.mark.parametrize(("trainer", "word", "value", "meant"), REFUSED)
def test_a_value_that_the_trainer_refuses_is_the_one_error_at_its_line(
    trainer: str, word: str, value: str, meant: str | None
) -> None:
    lines = {**HEALTHY[trainer], word: value}
    (finding,) = errors(found(trainer, lines))
    assert finding.rule in ABOUT_VALUES
    assert finding.parameter == word
    assert finding.origin is not None
    assert finding.origin.line == [*lines].index(word) + 1
    assert value.strip("[]") in finding.message
    assert known_words(trainer).release in finding.message
    assert meant is None or f"`{meant}`" in (finding.help or "")
    text = converted(trainer)
    assert f"# {word}: " in text.partition("# Not said here:")[2]
    assert not [
        line
        for line in text.partition("# Not said here:")[0].splitlines()
        if line.endswith((f"# {word}", f"# default of {word}"))
    ]


@pytest.mark.parametrize(("trainer", "word", "value"), ACCEPTED)
def test_a_value_that_the_trainer_takes_is_no_error(trainer: str, word: str, value: str) -> None:
    findings = found(trainer, {**HEALTHY[trainer], word: value})
    assert not [one for one in findings if one.rule in ABOUT_VALUES]


def test_text_that_is_a_number_or_a_truth_there_is_converted_as_one() -> None:
    found("llamafactory", HEALTHY["llamafactory"] | {"learning_rate": "'1e-4'", "bf16": "'yes'"})
    values = read_foreign(Path("theirs.yaml"), "llamafactory").composed.values
    assert (values["optim"]["lr"], values["model"]["dtype"]) == (1e-4, "bfloat16")


@pytest.mark.parametrize(
    ("trainer", "word", "rank"),
    [
        ("llamafactory", "finetuning_type", "lora_rank: 8"),
        ("ms-swift", "tuner_type", "lora_rank: 8"),
        ("axolotl", "adapter", "lora_r: 8"),
        ("trl", "use_peft", "lora_r: 8"),
    ],
)
def test_what_depends_on_a_misspelt_adapter_stays_named(trainer: str, word: str, rank: str) -> None:
    findings = found(trainer, {**HEALTHY[trainer], word: "loraa"})
    assert not [one for one in findings if one.rule == "no-counterpart"]
    assert f"# {rank}  (lora.rank" in converted(trainer).partition("# Not said here:")[2]


@pytest.mark.parametrize("trainer", ["trl", "llamafactory", "ms-swift"])
def test_epochs_below_zero_are_out_of_range_for_each_trainer(trainer: str) -> None:
    (finding,) = errors(found(trainer, {**HEALTHY[trainer], "num_train_epochs": "-3"}))
    assert (finding.rule, finding.parameter) == ("out-of-range", "num_train_epochs")


def test_a_plug_in_of_others_may_add_an_adapter() -> None:
    lines = {**HEALTHY["axolotl"], "adapter": "mine"}
    assert not errors(found("axolotl", lines | {"plugins": "[mine.Plugin]"}))
    assert errors(found("axolotl", lines | {"plugins": "[axolotl.integrations.liger.LigerPlugin]"}))


def test_verl_refuses_a_schedule_of_another_engine() -> None:
    Path("rows.parquet").touch()
    text = (
        "data: {train_files: rows.parquet}\nmodel: {path: Qwen/Qwen2.5-VL-3B-Instruct}\n"
        "optim: {lr_scheduler_type: X}\n"
    )
    for name, refused in (("cosin", True), ("cosine", False), ("linear", True)):
        Path("theirs.yaml").write_text(text.replace("X", name))
        findings = examine_foreign(Path("theirs.yaml")).findings
        said = [one.help for one in findings if one.rule == "unknown-choice"]
        assert bool(said) == refused
        assert name != "cosin" or said == ["did you mean `cosine`?"]


@pytest.mark.parametrize(
    "line",
    [
        "trainer: {total_epochs: one}",
        "trainer: {logger: [console, wandbb]}",
        "data: {train_files: rows.parquet, truncation: rigth}",
        "data: {train_files: rows.parquet, train_batch_size: 2.5}",
        "optim: {lr: fast, lr_warmup_steps_ratio: 0.1}",
        "optim: {weight_decay: none}",
    ],
)
def test_verl_has_types_and_choices_too(line: str) -> None:
    Path("rows.parquet").touch()
    data = "" if line.startswith("data") else "data: {train_files: rows.parquet}\n"
    Path("theirs.yaml").write_text(f"model: {{path: Qwen/Qwen2.5-VL-3B-Instruct}}\n{data}{line}\n")
    (finding,) = errors(list(examine_foreign(Path("theirs.yaml")).findings))
    assert finding.rule in ABOUT_VALUES
    assert finding.origin is not None


def check_agreement(trainer: str, lines: dict[str, str]) -> None:
    """Hold what is said to have no counterpart against what is converted."""
    Path("theirs.yaml").write_text("".join(f"{word}: {value}\n" for word, value in lines.items()))
    reading = read_foreign(Path("theirs.yaml"), trainer)
    said = [one for one in reading.findings if one.message.find("no counterpart here, or a") > 0]
    names = {name for one in said for name in one.message.rpartition(": ")[2].split(", ")}
    body, _, left = as_recipe(reading, trainer).partition("# Not said here:")
    arrived = {line.rpartition("  # ")[2] for line in body.splitlines() if "  # " in line}
    assert not names & arrived
    assert not [name for name in names if f"# {name}: " not in left and "; there " not in body]
    assert not [name for name in arrived if f"# {name}: " in left]


VALUES = ["17", "true", "x", "[wandb, comet_ml]", "steps", "none"]


@pytest.mark.parametrize("trainer", HEALTHY)
@pytest.mark.parametrize("value", VALUES)
def test_words_together_are_converted_or_said_to_have_no_counterpart(
    trainer: str, value: str
) -> None:
    words = {*known_words(trainer).fields} - {*HEALTHY[trainer]}
    check_agreement(trainer, HEALTHY[trainer] | dict.fromkeys(sorted(words), value))


@pytest.mark.full
@pytest.mark.parametrize("trainer", HEALTHY)
@pytest.mark.parametrize("value", VALUES)
def test_each_word_is_converted_or_said_to_have_no_counterpart(trainer: str, value: str) -> None:
    for word in sorted({*known_words(trainer).fields} - {*HEALTHY[trainer]}):
        check_agreement(trainer, {**HEALTHY[trainer], word: value})


def test_a_tracker_that_is_not_installed_is_converted_and_said_to_be_missing() -> None:
    Path("rows.parquet").touch()
    Path("theirs.yaml").write_text(
        "data: {train_files: rows.parquet, train_max_samples: 10}\n"
        "model: {path: Qwen/Qwen2.5-VL-3B-Instruct}\ntrainer: {logger: [console, trackio]}\n"
    )
    findings = examine_foreign(Path("theirs.yaml")).findings
    assert not [one for one in findings if one.rule == "no-counterpart"]
    text = as_recipe(read_foreign(Path("theirs.yaml"), "verl"), "verl")
    assert '"kind": "trackio"' in text
    assert '"limit": 10' in text
    assert "# trainer.logger: " not in text


def test_how_many_rows_are_read_is_not_without_counterpart_where_the_rows_are_elsewhere() -> None:
    lines = {**HEALTHY["llamafactory"], "dataset": "demo", "max_samples": "100"}
    findings = found("llamafactory", lines)
    assert not [one for one in findings if one.rule == "no-counterpart"]
    assert "# max_samples: 100" in converted("llamafactory")


def test_verl_says_in_the_recipe_why_longer_rows_are_cut() -> None:
    Path("theirs.yaml").write_text(
        "data: {truncation: error}\nmodel: {path: Qwen/Qwen2.5-VL-3B-Instruct}\n"
    )
    text = as_recipe(read_foreign(Path("theirs.yaml"), "verl"), "verl")
    assert "# data.on_overlong is truncate: with data.pad_mode=no_padding" in text


def test_a_name_of_axolotl_is_of_the_setting_that_it_comes_from() -> None:
    found("axolotl", HEALTHY["axolotl"])
    assert "  name: out  # output_dir" in converted("axolotl")
    found("axolotl", HEALTHY["axolotl"] | {"wandb_name": "mine"})
    assert "  name: mine  # wandb_name" in converted("axolotl")


@pytest.mark.parametrize("trainer", HEALTHY)
def test_steps_of_a_log_are_named_as_not_said(trainer: str) -> None:
    findings = found(trainer, {**HEALTHY[trainer], "logging_steps": "7"})
    assert not [one for one in findings if one.rule == "no-counterpart"]
    assert "# logging_steps: 7" in converted(trainer).partition("# Not said here:")[2]
