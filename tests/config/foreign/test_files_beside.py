"""Recipes of other trainers: what files beside them, and variables, do to their settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import foreign_examples
from tests.commands import run_vtool
from tests.config.foreign.test_hf import STOCK
from vtool.config.foreign.convert import as_recipe
from vtool.config.load import examine_foreign, read_foreign
from vtool.diagnostics import Diagnostic, Findings

SWIFT = "swift sft --model /models/{model} \\\n  --dataset x.jsonl --max_length {length}\n"
FACTORY = """\
model_name_or_path: /models/{model}
do_train: true
finetuning_type: lora
lora_target: all
dataset: parts
cutoff_len: 2048
output_dir: out
learning_rate: 2.0e-5
per_device_train_batch_size: 4
bf16: true
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> Path:
    path = Path("theirs.sh" if "swift sft" in text else "theirs.yaml")
    path.write_text(text)
    return path


def found(trainer: str, text: str) -> list[Diagnostic]:
    findings = examine_foreign(write(text), trainer=trainer).findings
    return [one for one in findings if one.severity != "note"]


def values(trainer: str, text: str) -> dict[str, Any]:
    return read_foreign(write(text), trainer).composed.values


@pytest.mark.parametrize(
    ("variables", "model", "bounds"),
    [
        ("IMAGE_MAX_TOKEN_NUM=1800", "Qwen3-VL-4B", {"max_pixels": 1800 * 32 * 32}),
        ("IMAGE_MAX_TOKEN_NUM=1800", "Qwen3.5-4B", {"max_pixels": 1800 * 32 * 32}),
        ("IMAGE_MAX_TOKEN_NUM=1800", "Qwen2.5-VL-3B", {"max_pixels": 1800 * 28 * 28}),
        ("MAX_PIXELS=1500000", "Qwen3-VL-4B", {"max_pixels": 1464 * 32 * 32}),
        ("MAX_PIXELS=$((1280 * 28 * 28))", "Qwen2-VL-7B", {"max_pixels": 1280 * 28 * 28}),
        ("MAX_PIXELS=9 IMAGE_MAX_TOKEN_NUM='64'", "Qwen2-VL-7B", {"max_pixels": 64 * 28 * 28}),
        ("IMAGE_MIN_TOKEN_NUM=16", "Qwen3-VL-4B", {"min_pixels": 16 * 32 * 32}),
        ("MAX_PIXELS=1003520", "SomeVL", {"max_pixels": 1003520}),
        ("IMAGE_MAX_TOKEN_NUM=1800", "SomeVL", {}),
        ("MAX_PIXELS=1003520", "GLM-4.1V-9B", {}),
    ],
)
def test_bounds_of_images_are_those_that_ms_swift_takes(
    variables: str, model: str, bounds: dict[str, int]
) -> None:
    script = SWIFT.format(model=model, length=4096)
    for text in (f"export {variables}\n{script}", f"{variables} \\\n{script}"):
        assert values("ms-swift", text).get("data", {}).get("image", {}) == bounds
    assert "image" not in values("ms-swift", f"# {variables}\n{script}").get("data", {})


def test_bounds_in_yaml_and_in_model_kwargs_are_read_as_well() -> None:
    recipe = "model: /models/Qwen3-VL-4B\ndataset: [x.jsonl]\n"
    of_env = f"{recipe}ENV:\n  IMAGE_MAX_TOKEN_NUM: '700'\n  NPROC_PER_NODE: 4\n"
    assert values("ms-swift", of_env)["data"]["image"] == {"max_pixels": 700 * 1024}
    assert values("ms-swift", of_env)["launch"] == {"nproc": 4}
    both = of_env + "model_kwargs: '{\"image_max_token_num\": 600}'\n"
    assert values("ms-swift", both)["data"]["image"] == {"max_pixels": 600 * 1024}
    tighter = of_env + "max_pixels: 100000\n"
    assert values("ms-swift", tighter)["data"]["image"] == {"max_pixels": 100000}


@pytest.mark.parametrize(
    ("variables", "model", "rule", "says"),
    [
        (
            "MAX_PIXELS=1500000 IMAGE_MAX_TOKEN_NUM=1800",
            "Qwen3-VL-4B",
            "setting-without-reader",
            "MAX_PIXELS is 1500000, but it is not read where IMAGE_MAX_TOKEN_NUM is set",
        ),
        (
            "VIDEO_MIN_PIXELS=99999 VIDEO_MIN_TOKEN_NUM=16",
            "Qwen3-VL-4B",
            "setting-without-reader",
            "VIDEO_MIN_PIXELS is 99999, but it is not read",
        ),
        (
            "IMAGE_MAX_TOKEN_NUM=6000",
            "Qwen3-VL-4B",
            "image-longer-than-row",
            "IMAGE_MAX_TOKEN_NUM=6000 an image can have up to 6000 tokens",
        ),
        (
            "VIDEO_MAX_TOKEN_NUM=3000",
            "Qwen3-VL-4B",
            "image-longer-than-row",
            "two frames of a video can have up to 3000 tokens",
        ),
        (
            "VIDEO_MAX_TOKEN_NUM=3000",
            "Qwen2.5-VL-3B",
            "image-longer-than-row",
            "VIDEO_MAX_TOKEN_NUM=3000 a video can have up to 3000 tokens",
        ),
        (
            "MAX_PIXELS=1003520",
            "GLM-4.1V-9B",
            "setting-without-reader",
            "ms-swift reads it for models of Qwen's alone",
        ),
    ],
)
def test_a_bound_that_is_not_read_or_has_no_room_is_told(
    variables: str, model: str, rule: str, says: str
) -> None:
    script = SWIFT.format(model=model, length=2048)
    (finding,) = found("ms-swift", f"export {variables}\n{script}")
    assert (finding.rule, finding.origin and finding.origin.line) == (rule, 1)
    assert says in finding.message


@pytest.mark.parametrize(
    "variables",
    [
        "MAX_PIXELS=1843200 IMAGE_MAX_TOKEN_NUM=1800",
        "MAX_PIXELS=1500000",
        "VIDEO_MAX_TOKEN_NUM=768 IMAGE_MAX_TOKEN_NUM=1024",
    ],
)
def test_bounds_that_say_one_thing_give_no_finding(variables: str) -> None:
    script = SWIFT.format(model="Qwen3-VL-4B", length=2048)
    assert found("ms-swift", f"export {variables}\n{script}") == []


def test_an_image_is_priced_by_its_own_family_or_not_at_all() -> None:
    Path("mine").mkdir()
    Path("mine/config.json").write_text('{"model_type": "qwen3_vl", "vision_config": {}}')
    own = FACTORY.replace("/models/{model}", "mine")
    named = FACTORY.format(model="my-merge")
    for text, pixels, rows in (
        (own, 1_800_000, 0),  # 1757 tokens of 32 × 32, 2295 of 28 × 28
        (own, 2_300_000, 1),
        (named + "template: qwen3_vl\n", 1_800_000, 0),
        (named + "template: qwen3_vl\n", 2_300_000, 1),
        (named, 9_000_000, 0),
    ):
        rules = [one.rule for one in found("llamafactory", f"{text}image_max_pixels: {pixels}\n")]
        assert rules.count("image-longer-than-row") == rows


CONTRADICTION = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 16,
    "train_batch_size": 30,
    "gradient_clipping": 0.5,
    "fp16": {"enabled": True},
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-4, "betas": [0.9, 0.95]}},
}


@pytest.mark.parametrize("name", CONTRADICTION)
def test_a_file_of_deepspeed_that_contradicts_the_recipe_is_refused_there(name: str) -> None:
    Path("ds.json").write_text(json.dumps({name: CONTRADICTION[name]}))
    text = FACTORY.format(model="Qwen2.5-VL-3B") + "deepspeed: ds.json\n"
    (finding,) = found("llamafactory", text)
    assert (finding.rule, finding.parameter) == ("refused-there", "deepspeed")
    assert f"it has {name}" in finding.message


@pytest.mark.parametrize(
    "settings",
    [
        dict.fromkeys(CONTRADICTION, "auto"),
        {"optimizer": {"params": {"lr": "auto", "betas": [0.9, 0.999], "weight_decay": 0}}},
        {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1},
        {"train_batch_size": 32, "gradient_clipping": 1, "bf16": {"enabled": True}},
        {"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}},
    ],
)
def test_a_file_of_deepspeed_that_says_the_same_gives_no_finding(settings: dict[str, Any]) -> None:
    Path("ds.json").write_text(json.dumps({**settings, "zero_optimization": {"stage": 2}}))
    text = FACTORY.format(model="Qwen2.5-VL-3B") + "deepspeed: ds.json\n"
    assert found("llamafactory", text) == []
    assert values("llamafactory", text)["engine"]["kind"] == "fsdp2"


def test_a_scheduler_of_deepspeed_takes_the_place_of_the_recipes() -> None:
    scheduler = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 2e-5}}
    Path("ds.json").write_text(json.dumps({"scheduler": scheduler}))
    text = FACTORY.format(model="Qwen2.5-VL-3B") + "deepspeed: ds.json\n"
    (finding,) = found("llamafactory", text + "lr_scheduler_type: cosine\n")
    assert (finding.rule, finding.parameter) == ("setting-without-reader", "lr_scheduler_type")
    assert found("llamafactory", text + "lr_scheduler_type: linear\n") == []
    assert values("llamafactory", text)["optim"]["schedule"] == "linear"


def test_a_file_of_deepspeed_that_is_not_there_or_no_json_is_told() -> None:
    text = FACTORY.format(model="Qwen2.5-VL-3B") + "deepspeed: ds_conf.json\n"
    Path("ds_config.json").write_text("{}")
    findings = examine_foreign(write(text), trainer="llamafactory").findings
    (absent,) = [one for one in findings if one.parameter == "deepspeed"]
    assert absent.rule == "not-on-this-machine"
    assert "ds_config.json" in (absent.help or "")
    Path("ds_conf.json").write_text("{lr: 1}  # mine")
    (finding,) = found("llamafactory", text)
    assert (finding.rule, finding.parameter) == ("refused-there", "deepspeed")
    swift = "model: x\ndataset: x\ndeepspeed: zero2\n"
    assert found("ms-swift", swift) == []


def test_rows_that_are_tokens_already_leave_settings_of_rows_unread() -> None:
    text = FACTORY.format(model="Qwen2.5-VL-3B") + (
        "tokenized_path: cache/parts\nval_size: 0.05\neval_strategy: steps\neval_steps: 9\n"
    )
    assert found("llamafactory", text) == []  # it is written in this run
    Path("cache/parts").mkdir(parents=True)
    assert found("llamafactory", text) == []  # there is nothing in it
    splits = Path("cache/parts/dataset_dict.json")
    splits.write_text('{"splits": ["train", "validation"]}')
    (finding,) = found("llamafactory", text)
    assert (finding.rule, finding.parameter) == ("setting-without-reader", "dataset")
    assert finding.message.startswith("dataset, val_size, cutoff_len are not read: cache/parts is")
    data = values("llamafactory", text)["data"]
    assert data.keys() & {"max_length", "split"} == set()
    splits.write_text('{"splits": ["train"]}')
    assert ("refused-there", "eval_strategy") in [
        (one.rule, one.parameter) for one in found("llamafactory", text)
    ]


@pytest.mark.parametrize(
    ("model", "more", "dead"),
    [
        ("Qwen2.5-VL-7B", "", ["freeze_multi_modal_projector"]),
        ("Qwen2.5-VL-7B", "freeze_vision_tower: false\n", ["freeze_multi_modal_projector"]),
        ("Qwen3-VL-8B", "", ["freeze_multi_modal_projector"]),
        ("Qwen3-VL-8B", "freeze_vision_tower: false\n", []),  # linear_fc1 of both
        ("GLM-4.1V-9B", "", []),  # gate_proj of both
        ("Qwen2.5-VL-7B", "additional_target: merger\n", []),
        ("Qwen2.5-VL-7B", "finetuning_type: full\n", []),
        ("llava-hf/llava-1.5-7b-hf", "", []),  # not known here
        (
            "Qwen2.5-VL-7B",
            "lora_target: q_proj,v_proj\nfreeze_vision_tower: false\n",
            ["freeze_multi_modal_projector", "freeze_vision_tower"],
        ),
        ("Qwen2.5-VL-7B", "lora_target: q_proj,qkv,mlp.0\nfreeze_vision_tower: false\n", []),
    ],
)
def test_a_part_that_no_adapter_reaches_is_told_and_frozen(
    model: str, more: str, dead: list[str]
) -> None:
    given = dict(line.split(": ") for line in more.splitlines())
    lines = FACTORY.format(model=model).splitlines()
    kept = [line for line in lines if line.partition(":")[0] not in given]
    text = "\n".join([*kept, "freeze_multi_modal_projector: false", more])
    rules = {one.parameter: one.rule for one in found("llamafactory", text)}
    assert [name for name in rules if str(name).startswith("freeze")] == dead
    frozen = values("llamafactory", text)["model"]["freeze"]
    assert frozen["projector"] is ("freeze_multi_modal_projector" in dead)


@pytest.mark.parametrize("name", ["constant", "reduce_lr_on_plateau"])
def test_a_schedule_without_a_warm_up_says_so_and_gets_none_here(name: str) -> None:
    text = f"lr_scheduler_type: {name}\nwarmup_steps: 60\neval_strategy: steps\n"
    (finding,) = found("trl", text)
    assert (finding.rule, finding.parameter) == ("setting-without-reader", "warmup_steps")
    assert values("trl", text)["optim"]["warmup_steps"] == 0
    assert "  warmup_steps: 0" in as_recipe(read_foreign(Path("theirs.yaml"), "trl"), "trl")
    for other in ("constant_with_warmup", "cosine", "linear"):
        assert found("trl", text.replace(name, other)) == []
        assert values("trl", text.replace(name, other))["optim"]["warmup_steps"] == 60


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ("trl", "compute_environment: LOCAL\ndistributed_type: FSDP\nnum_processes: 8\n"),
        ("llamafactory", "model: x\ntrain_dataset: d.yaml\ncutoff_len: 1\n"),
        ("llamafactory", "model_name_or_path: x\ntemplate: y\nexport_dir: z\n"),
        ("ms-swift", "stream: true\nmax_new_tokens: 4\ntemperature: 0\n"),
    ],
)
def test_a_file_of_another_command_is_refused_as_a_whole(trainer: str, text: str) -> None:
    with pytest.raises(Findings, match="unknown-recipe"):
        found(trainer, text)


def test_the_script_counts_what_is_found_in_a_folder_of_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("good.yaml").write_text(STOCK["llamafactory"])
    Path("launch.yaml").write_text("compute_environment: LOCAL\n")
    assert foreign_examples.main(["--from", "llamafactory", "."]) == 0
    assert "1 read (1 without error or warning), 1 of something else" in capsys.readouterr().out
    Path("typo.yaml").write_text("do_train: true\nlora_rnk: 8\n")
    assert foreign_examples.main(["--from", "llamafactory", "."]) == 1


def test_the_command_says_both_what_is_read_and_what_it_becomes() -> None:
    write("export IMAGE_MAX_TOKEN_NUM=1800\n" + SWIFT.format(model="Qwen3-VL-4B", length=1024))
    done = run_vtool(Path(), "validate-config", "--from", "ms-swift", "theirs.sh", "--convert")
    assert "max_pixels: 1843200  # IMAGE_MAX_TOKEN_NUM" in done.stdout
    assert "with IMAGE_MAX_TOKEN_NUM=1800 an image can have up to 1800 tokens" in done.stderr
    assert "set IMAGE_MAX_TOKEN_NUM below 1024" in done.stderr


@pytest.mark.parametrize("kind", ["lora", "full", "freeze"])
def test_what_freeze_alone_reads_is_said_of_the_other_kinds(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "lf.yaml"
    file.write_text(
        "model_name_or_path: /models/Qwen2.5-VL-7B-Instruct\nstage: sft\ndataset: a\n"
        f"finetuning_type: {kind}\nfreeze_trainable_layers: 4\n"
    )
    examined = examine_foreign(file, trainer="llamafactory")
    said = [one for one in examined.findings if "freeze_trainable_layers is set" in one.message]
    assert len(said) == (kind != "freeze")
