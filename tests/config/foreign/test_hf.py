"""Recipes of TRL, LLaMA-Factory and ms-swift: what is found in them, and what they become here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool
from vtool.config.foreign.convert import as_recipe
from vtool.config.foreign.more_words import AXOLOTL_WORDS, PEFT_WORDS, VERL_WORDS
from vtool.config.foreign.trainers import TRAINERS, looks_visual
from vtool.config.foreign.verl_settings import verl_names
from vtool.config.foreign.words import WORDS
from vtool.config.load import examine, examine_foreign, read_foreign
from vtool.config.schema import RECIPE_KINDS
from vtool.config.settings import all_settings
from vtool.diagnostics import RULES, Diagnostic, Findings

STOCK = {
    "llamafactory": """\
model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
image_max_pixels: 262144
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: mllm_demo,identity
template: qwen2_vl
cutoff_len: 2048
max_samples: 1000
output_dir: saves/qwen2_5vl-7b/lora/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
resume_from_checkpoint: null
""",
    "ms-swift": """\
# one GPU
CUDA_VISIBLE_DEVICES=0 \\
NPROC_PER_NODE=2 \\
swift sft \\
    --model Qwen/Qwen2.5-VL-7B-Instruct \\
    --dataset 'AI-ModelScope/LaTeX_OCR:human_handwrite#20000' \\
    --tuner_type lora \\
    --torch_dtype bfloat16 \\
    --num_train_epochs 1 \\
    --per_device_train_batch_size 2 \\
    --learning_rate 1e-4 \\
    --lora_rank 8 \\
    --target_modules q_proj v_proj \\
    --freeze_vit true \\
    --gradient_accumulation_steps 4 \\
    --split_dataset_ratio 0.01 \\
    --eval_strategy steps \\
    --eval_steps 50 \\
    --save_steps 50 \\
    --max_length 2048 \\
    --output_dir output \\
    --warmup_ratio 0.05
echo done
""",
    "trl": """\
model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct
dataset_name: trl-lib/llava-instruct-mix
output_dir: sft-vl
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 2.0e-5
num_train_epochs: 1
use_peft: true
lora_target_modules: all-linear
lora_modules_to_save: [merger]
max_length: null
warmup_steps: 0.03
report_to: [tensorboard]
assistant_only_loss: true
""",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(trainer: str, text: str) -> Path:
    path = Path("theirs.sh" if "\\\n" in text else "theirs.yaml")
    path.write_text(text)
    return path


def found(trainer: str, text: str) -> list[Diagnostic]:
    return list(examine_foreign(write(trainer, text), trainer=trainer).findings)


def values(trainer: str, text: str) -> dict[str, Any]:
    return read_foreign(write(trainer, text), trainer).composed.values


@pytest.mark.parametrize("trainer", STOCK)
def test_a_healthy_recipe_gives_no_finding_but_a_note(trainer: str) -> None:
    assert [one.message for one in found(trainer, STOCK[trainer]) if one.severity != "note"] == []


@pytest.mark.parametrize("trainer", STOCK)
def test_what_is_converted_is_a_valid_recipe_that_means_the_same(trainer: str) -> None:
    reading = read_foreign(write(trainer, STOCK[trainer]), trainer)
    Path("ours.yaml").write_text(as_recipe(reading, trainer))
    examined = examine("ours.yaml")
    assert {one.parameter for one in examined.findings if one.severity == "error"} == {
        "model.path",
        "data.train",
    }
    here = ("model.path=null", "model.size=tiny", "data.train=[{format: digits, split: train}]")
    examined = examine("ours.yaml", here)
    assert [one.message for one in examined.findings if one.severity == "error"] == []
    assert examined.loaded is not None
    settings: Any = examined.loaded.run
    wanted = {"llamafactory": (8, 8, 1e-4), "ms-swift": (2, 16, 1e-4), "trl": (2, 8, 2e-5)}
    data = settings.data
    seen = (data.micro_batch_size, data.global_batch_size, settings.optim.lr)
    assert seen == wanted[trainer]


def test_a_model_on_a_hub_keeps_its_name_in_what_is_converted() -> None:
    reading = read_foreign(write("trl", STOCK["trl"]), "trl")
    assert '  path: "Qwen/Qwen2.5-VL-3B-Instruct"  # on a hub' in as_recipe(reading, "trl")


def test_a_number_sign_within_a_word_of_a_script_begins_no_comment() -> None:
    """The shell's way: ms-swift takes so many rows of `NAME#500`."""
    script = (
        "swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --dataset rows#500 '#of these' \\\n"
        "    --num_train_epochs 2 \\\n  --lora_rank 4  # don't: --lora_rank 64\n"
    )
    given = values("ms-swift", script)
    assert (given["train"]["epochs"], given["lora"]["rank"]) == (2, 4)


def test_defaults_of_theirs_are_in_force_where_they_say_nothing() -> None:
    factory, swift, trl = (values(name, STOCK[name]) for name in STOCK)
    assert factory["model"]["freeze"] == {"vision": True, "projector": True, "language": False}
    assert (factory["optim"]["betas"], swift["optim"]["betas"]) == ([0.9, 0.999], [0.9, 0.95])
    assert (factory["data"]["on_overlong"], swift["data"]["on_overlong"]) == ("truncate", "drop")
    assert (swift["lora"]["alpha"], swift["lora"]["targets"]) == (32.0, ["q_proj", "v_proj"])
    assert (swift["launch"]["nproc"], swift["data"]["split"]) == (2, {"validation": 0.01})
    assert (trl["optim"]["warmup_ratio"], trl["optim"]["schedule"]) == (0.03, "linear")
    assert (trl["lora"]["modules_to_save"], "targets" in trl["lora"]) == (["merger"], False)
    assert (trl["tracking"], "max_length" in trl["data"]) == ([{"kind": "tensorboard"}], False)


def test_every_data_set_that_is_not_listed_is_an_error(tmp_path: Path) -> None:
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text('{"mllm_demo": {}, "identity": {}}')
    names = "dataset: mllm_dem, identity, nothing\neval_dataset: neither\ndo_train: true\n"
    Path("lf.yaml").write_text(f"{names}eval_strategy: steps\nlearning_rate: 1.0e-4\n")
    done = run_vtool(tmp_path, "validate-config", "--from", "llamafactory", "lf.yaml")
    assert done.status == 1
    for word, name in (
        ("dataset", "mllm_dem"),
        ("dataset", "nothing"),
        ("eval_dataset", "neither"),
    ):
        message = f"{word}: data/dataset_info.json has no data set `{name}`: LLaMA-Factory refuses"
        assert f"error[refused-there VT237]: {message}" in done.stdout
    assert "`identity`" not in done.stdout
    assert "did you mean `mllm_demo`?" in done.stdout
    Path("lf.yaml").write_text("dataset: mllm_demo,identity\ndo_train: true\n")
    assert (
        "data set"
        not in run_vtool(tmp_path, "validate-config", "--from", "llamafactory", "lf.yaml").stdout
    )


def test_rows_that_are_here_are_taken() -> None:
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text('{"a": {}, "b": {}}')
    Path("rows.jsonl").touch()
    assert values("llamafactory", "dataset: a,b\n")["data"]["train"] == [
        {"format": "llama_factory", "path": "data/dataset_info.json", "dataset": name}
        for name in ("a", "b")
    ]
    assert values("ms-swift", "dataset: ['rows.jsonl#500']\n")["data"]["train"] == [
        {"format": "swift", "path": "rows.jsonl", "limit": 500}
    ]


VISUAL = "model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct\n"


@pytest.mark.parametrize(
    ("trainer", "text", "rule", "parameter"),
    [
        ("llamafactory", "do_train: true\npacking: true\n", "silent-trap", "packing"),
        (
            "llamafactory",
            f"{VISUAL}do_train: true\ngradient_accumulation_steps: 8\n",
            "silent-trap",
            "gradient_accumulation_steps",
        ),
        ("llamafactory", "stage: sft\n", "silent-trap", "do_train"),
        (
            "llamafactory",
            "do_train: true\neval_strategy: steps\n",
            "refused-there",
            "eval_strategy",
        ),
        (
            "llamafactory",
            "do_train: true\nval_size: 0.1\n",
            "setting-without-reader",
            "val_size",
        ),
        (
            "llamafactory",
            "do_train: true\ninterleave_probs: 0.5,0.5\n",
            "refused-there",
            "interleave_probs",
        ),
        ("ms-swift", "dataset: x\npacking: true\n", "refused-there", "packing"),
        ("ms-swift", "learning_rate: 1e-4\n", "refused-there", "dataset"),
        (
            "ms-swift",
            "dataset: x\nwarmup_ratio: 0.1\nwarmup_steps: 10\n",
            "refused-there",
            "warmup_steps",
        ),
        ("ms-swift", "dataset: x\neval_steps: 5\n", "setting-without-reader", "eval_steps"),
        (
            "ms-swift",
            "dataset: x\ntuner_type: full\nlora_rank: 8\n",
            "setting-without-reader",
            "lora_rank",
        ),
        ("trl", "lora_r: 8\n", "setting-without-reader", "lora_r"),
        ("trl", f"{VISUAL}max_length: null\n", "silent-trap", "assistant_only_loss"),
        ("trl", f"{VISUAL}assistant_only_loss: true\n", "silent-trap", "max_length"),
        (
            "trl",
            f"{VISUAL}assistant_only_loss: true\nmax_length: null\npacking: true\n",
            "refused-there",
            "packing",
        ),
        (
            "trl",
            f"{VISUAL}assistant_only_loss: true\nmax_length: null\nuse_peft: true\n",
            "refused-there",
            "use_peft",
        ),
        ("trl", "bf16: true\nfp16: true\n", "refused-there", "fp16"),
        (
            "trl",
            "max_steps: 10\nnum_train_epochs: 2\n",
            "setting-without-reader",
            "num_train_epochs",
        ),
    ],
)
def test_a_trap_is_reported_at_its_place(
    trainer: str, text: str, rule: str, parameter: str
) -> None:
    (finding,) = [one for one in found(trainer, text) if one.severity != "note"]
    assert (finding.rule, finding.parameter) == (rule, parameter)
    if parameter in text:
        line = 1 + [row.partition(":")[0] for row in text.splitlines()].index(parameter)
        assert finding.origin is not None
        assert finding.origin.line == line


@pytest.mark.parametrize(
    ("rule", "trainer"), [("silent-trap", "llamafactory"), ("refused-there", "ms-swift")]
)
def test_the_bad_example_is_found_and_the_good_one_is_not(rule: str, trainer: str) -> None:
    assert rule in [one.rule for one in found(trainer, RULES[rule].bad)]
    assert rule not in [one.rule for one in found(trainer, RULES[rule].good)]


@pytest.mark.parametrize(
    ("trainer", "text", "help"),
    [
        ("llamafactory", "do_train: true\nlora_rnk: 8\n", "did you mean `lora_rank`?"),
        ("ms-swift", "dataset: x\ntrain_type: lora\n", "it is called `tuner_type` now"),
        ("trl", "warmup_ratio: 0.1\n", "transformers has taken it away: `warmup_steps` below 1"),
    ],
)
def test_a_setting_that_they_do_not_have_comes_with_the_one_that_was_meant(
    trainer: str, text: str, help: str
) -> None:
    (finding,) = [one for one in found(trainer, text) if one.rule == "unknown-key"]
    assert (finding.help or "").startswith(help)


@pytest.mark.parametrize(
    ("trainer", "text", "ours"),
    [
        ("trl", "warmup_ratio: 0.03\n", ("optim", "warmup_ratio", 0.03)),
        ("trl", "optim: adamw_torch_8bit\n", ("optim", "states", "8bit")),
        ("llamafactory", "optim: adamw_8bit\n", ("optim", "states", "8bit")),
        ("ms-swift", "model: x\noptim: adamw_bnb_8bit\n", ("optim", "states", "8bit")),
        ("trl", "optim: adamw_torch_fused\n", ("optim", "states", None)),
        ("trl", "optim: paged_adamw_8bit\n", ("optim", "states", None)),
        ("trl", "max_seq_length: 77\n", ("data", "max_length", 77)),
        ("ms-swift", "model: x\ntrain_type: full\nlora_rank: 4\n", ("lora", "rank", None)),
        ("ms-swift", "model: x\nsplit_dataset_ratio: 0.1\n", ("evaluation", "every_steps", 500)),
        (
            "ms-swift",
            "model: x\nsplit_dataset_ratio: 0.1\neval_steps: 7\n",
            ("evaluation", "every_steps", 7),
        ),
        ("llamafactory", "save_strategy: 'no'\n", ("checkpoint", "every_steps", None)),
    ],
)
def test_words_of_earlier_releases_and_what_follows_from_others_are_converted(
    trainer: str, text: str, ours: tuple[str, str, object]
) -> None:
    group, name, value = ours
    assert values(trainer, text).get(group, {}).get(name) == value


@pytest.mark.parametrize(
    ("trainer", "line"),
    [
        ("trl", "eval_strategy: epoch"),
        ("trl", "save_strategy: best"),
        ("trl", "no_such_setting: 3"),
        ("llamafactory", "save_strategy: epoch"),
        ("ms-swift", "torch_compile: true"),
    ],
)
def test_no_word_is_lost_in_a_recipe_that_is_converted(trainer: str, line: str) -> None:
    reading = read_foreign(write(trainer, f"{line}\n"), trainer=trainer)
    assert f"# {line.partition(':')[0]}: " in as_recipe(reading, trainer)


@pytest.mark.parametrize(
    ("trainer", "text", "ours"),
    [
        (
            "trl",
            "accelerate launch --num_processes 4 \\\n    examples/scripts/sft_vlm.py \\\n"
            "    --per_device_train_batch_size 2 --gradient_accumulation_steps 3\n",
            ("data", "global_batch_size", 24),
        ),
        (
            "llamafactory",
            "torchrun --nproc_per_node 2 src/train.py --cutoff_len 99\n",
            ("data", "max_length", 99),
        ),
        (
            "ms-swift",
            "MAX_PIXELS=1003520 VIDEO_MAX_PIXELS=50176 swift sft --model x\n",
            ("data", "image", {"max_pixels": 1003520}),
        ),
    ],
)
def test_scripts_that_start_a_trainer_by_its_file_or_set_variables(
    trainer: str, text: str, ours: tuple[str, str, object]
) -> None:
    Path("train.sh").write_text(text)
    group, name, value = ours
    assert read_foreign(Path("train.sh"), trainer).composed.values[group][name] == value


@pytest.mark.parametrize("option", ["--config_file {}", "--config-file={}", '--config_file "{}"'])
def test_the_file_of_accelerate_says_how_many_processes_there_are(option: str) -> None:
    Path("launch").mkdir()
    Path("launch/four.yaml").write_text("mixed_precision: bf16\nnum_processes: 4\n")
    command = "    sft_vlm.py --per_device_train_batch_size 2 --gradient_accumulation_steps 3\n"
    for more, rows in (("", 24), ("--num_processes 2 ", 12)):
        start = f"accelerate launch {option.format('launch/four.yaml')} {more}"
        Path("train.sh").write_text(f"{start}\\\n{command}")
        values = read_foreign(Path("train.sh"), trainer="trl").composed.values
        assert values["data"]["global_batch_size"] == rows
    Path("launch/four.yaml").unlink()
    Path("train.sh").write_text(
        f"accelerate launch {option.format('launch/four.yaml')} \\\n{command}"
    )
    assert any("of one process" in note for note in read_foreign(Path("train.sh"), "trl").notes)


def test_our_rules_speak_in_their_words() -> None:
    (finding,) = [one for one in found("trl", "learning_rate: -1.0\n") if one.severity == "error"]
    assert (finding.rule, finding.parameter) == ("out-of-range", "learning_rate")
    assert "optim.lr" not in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: [a, {b: c}]\nmax_steps: many\nnum_train_epochs: no\n",
        "lr_scheduler_kwargs: '{'\nlr_scheduler_type: cosine_with_min_lr\n",
        "per_device_train_batch_size: 0\ngradient_accumulation_steps: x\n",
        "report_to: {a: b}\ndataset: {x: 1}\nlora_target: 7\nwarmup_steps: later\n",
        "dataset: 5\nbf16: maybe\nseed: null\noutput_dir: 7\nmodel_name_or_path: [1]\n",
    ],
)
@pytest.mark.parametrize("trainer", STOCK)
def test_values_of_any_type_give_findings_and_no_traceback(trainer: str, text: str) -> None:
    path = write(trainer, text)
    examine_foreign(path, trainer=trainer)
    as_recipe(read_foreign(path, trainer), trainer)


def test_a_number_that_a_variable_gives_is_left_open() -> None:
    text = "swift sft \\\n --dataset x \\\n --gradient_accumulation_steps $(expr 8 / $N)\n"
    assert [one for one in found("ms-swift", text) if one.severity == "error"] == []
    recipe = as_recipe(read_foreign(Path("theirs.sh"), "ms-swift"), "ms-swift")
    assert "  global_batch_size: ???  # rows of a step" in recipe


def test_settings_of_another_back_end_are_refused_as_a_whole() -> None:
    with pytest.raises(Findings, match=r"unknown-recipe.*Megatron"):
        found("llamafactory", "do_train: true\ntensor_model_parallel_size: 4\n")


@pytest.mark.parametrize(
    "text", ["echo hello\n", "swift infer --model x\n", "\x00\n", "swift sft their.yaml\n"]
)
def test_a_script_that_does_not_train_is_refused(text: str) -> None:
    Path("train.sh").write_text(text)
    with pytest.raises(Findings, match="unknown-recipe"):
        examine_foreign(Path("train.sh"), trainer="ms-swift")


def test_the_command_prints_the_recipe_alone_on_standard_output() -> None:
    write("trl", STOCK["trl"])
    done = run_vtool(Path(), "validate-config", "--from", "trl", "theirs.yaml", "--convert")
    assert done.status == 0, done.stderr
    assert done.stdout.startswith("# From theirs.yaml, a recipe of trl.")
    assert "not-on-this-machine" in done.stderr
    for wrong in (["digits", "--convert"], ["--from", "trl", "theirs.yaml", "--convert", "--show"]):
        assert run_vtool(Path(), "validate-config", *wrong).status == 2


def test_every_word_is_of_a_trainer_and_names_a_setting() -> None:
    settings = {each.name for schema in RECIPE_KINDS.values() for each in all_settings(schema)}
    assert {word.ours for word in WORDS.values() if word.ours} <= settings
    theirs = {name for trainer in TRAINERS.values() for name in trainer.fields}
    earlier = {"train_type", "max_seq_length", "save_safetensors", "evaluation_strategy"}
    others = {*VERL_WORDS, *AXOLOTL_WORDS, *PEFT_WORDS}
    assert others & theirs == set()
    whole = {"override_ddp_config", "override_transformer_config"}
    assert {*VERL_WORDS} - PLAIN_NAMES - whole == {"warmup_steps_ratio"}
    assert WORDS.keys() - theirs - others == earlier
    assert all(word.ours or word.how for word in WORDS.values())


PLAIN_NAMES = {name.rpartition(".")[2] for name in verl_names()}


def test_a_model_that_sees_images_is_known_by_its_folder_or_its_name() -> None:
    Path("plain-vl").mkdir()
    Path("plain-vl/config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert not looks_visual("plain-vl")
    for name in ("Qwen/Qwen2.5-VL-7B-Instruct", "llava-hf/llava-1.5-7b-hf", "THUDM/GLM-4.1V-9B"):
        assert looks_visual(name), name
    for name in ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B", "google/gemma-3-1b-it", None):
        assert not looks_visual(name), name


def test_a_variable_that_a_script_sets_is_read() -> None:
    text = "LR=1e-4\nswift sft \\\n --dataset x \\\n --learning_rate ${LR} \\\n --tuner_type full\n"
    write("ms-swift", text)
    recipe = as_recipe(read_foreign(Path("theirs.sh"), "ms-swift"), "ms-swift")
    assert "lr: 0.0001" in recipe
