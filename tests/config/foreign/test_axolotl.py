"""Recipes of axolotl: what is found in them, and what they become here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool
from tests.config.foreign.test_whose import RECIPES
from vtool.config.load import Examined, examine, examine_foreign, read_foreign

SEES = RECIPES["axolotl"]
TEXT = """\
base_model: here/it
datasets:
  - path: rows.jsonl
    type: chat_template
test_datasets:
  - path: others.jsonl
    type: chat_template
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [q_proj, v_proj]
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
optimizer: adamw_torch
lr_scheduler: cosine
cosine_min_lr_ratio: 0.1
learning_rate: 2e-4
weight_decay: 0.1
adam_beta2: 0.95
max_grad_norm: 0.5
warmup_steps: 10
bf16: auto
attn_implementation: flash_attention_2
gradient_checkpointing: true
save_steps: 50
eval_steps: 25
save_total_limit: 2
wandb_project: mine
wandb_name: first
output_dir: ./out
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here/it").mkdir(parents=True)
    Path("here/it/config.json").write_text(
        json.dumps({"model_type": "qwen2_vl", "vision_config": {}})
    )
    Path("rows.jsonl").touch()
    Path("others.jsonl").touch()


def examined(text: str) -> Examined:
    Path("theirs.yaml").write_text(text)
    return examine_foreign(Path("theirs.yaml"), trainer="axolotl")


def said(text: str) -> list[tuple[str, str, str | None]]:
    found = examined(text).findings
    return [(one.severity, one.rule, one.parameter) for one in found if one.severity != "note"]


def test_what_means_the_same_becomes_our_setting(tmp_path: Path) -> None:
    Path("theirs.yaml").write_text(TEXT)
    done = run_vtool(tmp_path, "validate-config", "--from", "axolotl", "theirs.yaml", "--convert")
    assert done.status == 0, done.stderr
    assert "Multiply it by the number of processes" in done.stdout
    Path("ours.yaml").write_text(done.stdout)
    again = examine("ours.yaml", [])
    assert again.loaded is not None
    plain: dict[str, Any] = again.loaded.plain
    assert (plain["model"]["path"], plain["model"]["family"]) == ("here/it", "qwen2_vl")
    assert (plain["model"]["dtype"], plain["model"]["attention"]) == (
        "bfloat16",
        "flash_attention_2",
    )
    lora = plain["lora"]
    assert (lora["rank"], lora["alpha"], lora["dropout"]) == (16, 32, 0.05)
    assert (lora["targets"], lora["base_dtype"]) == (["q_proj", "v_proj"], "nf4")
    data = plain["data"]
    assert [source["path"] for source in data["train"]] == ["rows.jsonl"]
    assert [source["path"] for source in data["validation"]] == ["others.jsonl"]
    assert (data["max_length"], data["on_overlong"]) == (4096, "drop")
    assert (data["packing"], data["micro_batch_tokens"]) == ("token_budget", 8192)
    assert data["global_batch_size"] == 8
    optim = plain["optim"]
    assert (optim["lr"], optim["weight_decay"], optim["betas"]) == (2e-4, 0.1, [0.9, 0.95])
    assert (optim["schedule"], optim["min_lr_ratio"], optim["clip_norm"]) == ("cosine", 0.1, 0.5)
    assert optim["warmup_steps"] == 10
    assert (plain["train"]["epochs"], plain["run"]["seed"], plain["run"]["name"]) == (
        3,
        42,  # axolotl's own
        "first",
    )
    assert (plain["checkpoint"]["every_steps"], plain["checkpoint"]["keep_last"]) == (50, 2)
    assert plain["evaluation"]["every_steps"] == 25
    assert (plain["tracking"][0]["kind"], plain["tracking"][0]["project"]) == ("wandb", "mine")


def test_a_public_recipe_has_no_error_and_no_warning() -> None:
    assert said(SEES) == []
    assert said(TEXT) == []


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("lora_rr: 8", ("error", "unknown-key", "lora_rr")),
        ("lora_rr:", None),  # nothing is given
        ("fsdp: [full_shard]", ("error", "unknown-key", "fsdp")),
        ("liger_rope: true", ("warning", "setting-without-reader", "liger_rope")),
        ("liger_rope: true\nplugins: [axolotl.integrations.liger.LigerPlugin]", None),
        ("of_mine: 1\nplugins: [mine.Plugin]", None),
        ("model_config: {rope_scaling: {type: linear}}", None),
        ("type_of_model: AutoModelForImageTextToText", None),
    ],
)
def test_a_setting_that_nothing_reads_is_told(
    more: str, found: tuple[str, str, str] | None
) -> None:
    assert said(f"{SEES}{more}\n") == ([found] if found else [])


def test_an_unknown_setting_is_named_with_the_nearest_and_its_place() -> None:
    [finding] = [
        one
        for one in examined(f"{SEES}lora_alfa: 8\n").findings
        if one.help and "alpha" in one.help
    ]
    assert finding.help == "did you mean `lora_alpha`?"
    assert "axolotl 0.21.0 has no setting `lora_alfa`, and drops it without" in finding.message
    assert str(finding.origin) == f"theirs.yaml:{len(SEES.splitlines()) + 1}:1"


@pytest.mark.parametrize(
    ("was", "now", "found"),
    [
        ("packing: false", "packing: true", ("error", "refused-there", "sample_packing")),
        ("chat_template: qwen2_vl\n", "", ("warning", "silent-trap", "processor_type")),
        ("template: qwen2_vl", "template: llava", ("warning", "silent-trap", "chat_template")),
        ("template: qwen2_vl", "template: llava\ntrain_on_inputs: true", None),
        ("template: qwen2_vl", "template: llava\nrole_boundaries: [{role: user, start: a}]", None),
        ("template: qwen2_vl", "template: pixtral", None),
        (
            "lr_scheduler: cosine",
            "lr_scheduler: constant\nwarmup_ratio: 0.1",
            ("warning", "setting-without-reader", "warmup_ratio"),
        ),
        ("lr_scheduler: cosine", "lr_scheduler: constant", None),
        ("lr_scheduler: cosine", "lr_scheduler: constant_with_warmup\nwarmup_ratio: 0.1", None),
        ("adapter: lora", "adapter: qlora", ("error", "refused-there", "adapter")),
        ("adapter: lora", "adapter: qlora\nload_in_4bit: true", None),
        (
            "val_set_size: 0.0",
            "test_datasets: [{path: a}]\nval_set_size: 0.1",
            ("error", "refused-there", "val_set_size"),
        ),
        (
            "num_epochs: 1",
            "num_epochs: 1\nwarmup_steps: 3\nwarmup_ratio: 0.1",
            ("error", "refused-there", "warmup_ratio"),
        ),
    ],
)
def test_a_trap_of_axolotls_is_found(
    was: str, now: str, found: tuple[str, str, str] | None
) -> None:
    assert was in SEES
    assert said(SEES.replace(was, now)) == ([found] if found else [])


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("gradient_accumulation_steps", 3, True),
        ("gradient_accumulation_steps", 4, False),
        ("gradient_accumulation_steps", "auto", False),
        ("train_micro_batch_size_per_gpu", 8, True),
        ("gradient_clipping", 1.0, True),
        ("gradient_clipping", 0.5, False),
        ("fp16", {"enabled": True}, True),
        ("bf16", {"enabled": True}, False),
        ("optimizer", {"type": "AdamW", "params": {"lr": 1e-5}}, True),
        ("optimizer", {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.9, 0.95]}}, False),
    ],
)
def test_the_file_of_deepspeed_is_held_against_the_recipe(
    name: str, value: Any, refused: bool
) -> None:
    Path("ds").mkdir()
    settings = {name: value, "zero_optimization": {"stage": 2}}
    Path("ds/zero2.json").write_text(json.dumps(settings))
    text = TEXT.replace("qlora", "lora").replace("load_in_4bit: true\n", "")
    found = said(f"{text}deepspeed: ds/zero2.json\n")
    assert found == ([("error", "refused-there", "deepspeed")] if refused else [])
    loaded = examined(f"{text}deepspeed: ds/zero2.json\n").loaded
    assert loaded is None or loaded.plain["engine"]["reshard_after_forward"] is False


def test_a_file_of_deepspeed_that_is_not_here_is_a_note() -> None:
    findings = examined(f"{TEXT}deepspeed: deepspeed_configs/zero3_bf16.json\n").findings
    assert [one.rule for one in findings if one.parameter == "deepspeed"] == ["not-on-this-machine"]


def test_the_length_is_taken_over_where_axolotl_prepares_the_rows() -> None:
    """With skip_prepare_dataset it calls handle_long_seq_in_dataset for no row."""
    text = SEES.replace("skip_prepare_dataset: true\n", "")
    Path("theirs.yaml").write_text(text)
    data = read_foreign(Path("theirs.yaml"), "axolotl").composed.values["data"]
    assert (data["max_length"], data["on_overlong"]) == (8192, "drop")
    Path("theirs.yaml").write_text(f"{text}skip_prepare_dataset: true\n")
    reading = read_foreign(Path("theirs.yaml"), "axolotl")
    assert "max_length" not in reading.composed.values["data"]
    assert any("no sequence_len" in note for note in reading.notes)


def test_text_without_images_is_packed_as_there() -> None:
    assert said(TEXT.replace("qlora", "lora").replace("load_in_4bit: true\n", "")) == []


def test_a_file_of_another_kind_is_no_recipe(tmp_path: Path) -> None:
    Path("cloud.yaml").write_text("provider: modal\ngpu: h100\n")
    done = run_vtool(tmp_path, "validate-config", "--from", "axolotl", "cloud.yaml")
    assert done.status == 2
    assert "unknown-recipe" in done.stdout


_PARSED = """
import json, logging, sys, yaml
logging.disable(logging.CRITICAL)
from axolotl.utils.schemas.config import AxolotlInputConfig
with open(sys.argv[1]) as file:
    parsed = AxolotlInputConfig(**yaml.safe_load(file))
print("RECORD" + json.dumps(parsed.model_dump(mode="json")))
"""


@pytest.mark.full
def test_a_converted_recipe_has_what_axolotls_own_schema_parses() -> None:
    """Run with axolotl installed, or its unpacked wheel in AXOLOTL_FOLDER."""
    folder = os.environ.get("AXOLOTL_FOLDER", "")
    if not folder and importlib.util.find_spec("axolotl") is None:
        pytest.skip("not run: axolotl is not installed, and AXOLOTL_FOLDER is not set")
    done = examined(TEXT)
    assert done.loaded is not None
    paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run(
        [sys.executable, "-c", _PARSED, "theirs.yaml"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RECORD")]
    theirs, plain = json.loads(line.removeprefix("RECORD")), done.loaded.plain
    optim, data, lora = plain["optim"], plain["data"], plain["lora"]
    assert optim["lr"] == float(theirs["learning_rate"])
    for ours, word in (("weight_decay", "weight_decay"), ("clip_norm", "max_grad_norm")):
        assert optim[ours] == theirs[word]
    assert (optim["warmup_steps"], optim["schedule"]) == (
        theirs["warmup_steps"],
        theirs["lr_scheduler"],
    )
    assert optim["min_lr_ratio"] == theirs["cosine_min_lr_ratio"]
    assert optim["betas"][1] == theirs["adam_beta2"]
    passes = theirs["micro_batch_size"] * theirs["gradient_accumulation_steps"]
    assert data["global_batch_size"] == passes
    assert data["micro_batch_tokens"] == theirs["sequence_len"] * theirs["micro_batch_size"]
    assert (data["max_length"], plain["train"]["epochs"]) == (
        theirs["sequence_len"],
        theirs["num_epochs"],
    )
    assert (lora["rank"], lora["alpha"], lora["dropout"], lora["targets"]) == tuple(
        theirs[word] for word in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
    )
    assert (lora["base_dtype"] == "nf4") == theirs["load_in_4bit"]
    assert plain["model"]["attention"] == theirs["attn_implementation"]
    assert plain["checkpoint"]["keep_last"] == theirs["save_total_limit"]
    assert plain["run"]["dir"] == theirs["output_dir"]
