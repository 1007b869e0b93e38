"""Scripts that start other trainers: launchers, variables, schedules and files of DeepSpeed's."""

import json
from pathlib import Path

import pytest

from tests.commands import run_vtool
from vtool.config.foreign.convert import as_recipe
from vtool.config.given_for_recipe import given_for_recipe
from vtool.config.load import examine_foreign, read_foreign
from vtool.diagnostics import Findings

TRL = "sft.py --model_name_or_path /models/m --dataset_name x --max_length 99 --learning_rate 1e-5"
SWIFT = "swift sft --model /models/Qwen3-VL-4B --dataset x.jsonl"
FACTORY = "src/train.py --stage sft --do_train true --model_name_or_path /models/m --dataset x"

Found = list[tuple[str, str | None]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(trainer: str, text: str, name: str = "run.sh") -> Found:
    Path(name).write_text(f"{text}\n")
    findings = examine_foreign(Path(name), trainer=trainer).findings
    return [(one.rule, one.parameter) for one in findings if one.severity != "note"]


@pytest.mark.parametrize(
    ("launcher", "finding"),
    [
        ("accelerate launch --num_processes 4", None),
        ("accelerate launch --mixed_precision bf16", None),
        ("accelerate launch --mixed_precision=fp16", ("setting-without-reader", "mixed_precision")),
        ("accelerate launch --mixed_precision no", ("setting-without-reader", "mixed_precision")),
        ("accelerate launch --multi_gpu --num_processes 1", ("refused-there", "num_processes")),
        ("accelerate launch --multi_gpu --num_processes 2", None),
        ("accelerate launch --cpu", None),
        ("accelerate launch --cpu --use_fsdp", ("refused-there", "use_fsdp")),
        (
            "accelerate launch --gradient_accumulation_steps 8",
            ("setting-without-reader", "gradient_accumulation_steps"),
        ),
        ("accelerate launch --gradient_accumulation_steps 1", None),
        ("accelerate launch --use_deepspeed --gradient_accumulation_steps 1 --zero_stage 3", None),
        ("deepspeed --num_gpus 2 --include localhost:0", ("refused-there", "num_gpus")),
        ("deepspeed --include localhost:0,1,2", None),
        ("torchrun --nproc_per_node 2 --nnodes 2", None),
        ("python", None),
    ],
)
def test_an_option_of_a_launcher_that_is_lost_or_refused_is_told(
    launcher: str, finding: tuple[str, str] | None
) -> None:
    assert found("trl", f"{launcher} {TRL}") == ([finding] if finding else [])


@pytest.mark.parametrize(
    ("launcher", "rows", "here"),
    [
        ("torchrun --nproc_per_node 4 --nnodes 2", 64, 4),
        ("GPUS=4\ntorchrun --nproc-per-node=$GPUS --nnodes=1", 32, 4),
        ("accelerate launch --num_processes 16 --num_machines 2", 128, 8),
        ("deepspeed --num_gpus=2 --num_nodes=3", 48, 2),
        ("deepspeed --include localhost:0,1,2", 24, 3),
        ("torchrun --nproc_per_node 8 prepare.py\ntorchrun --nproc_per_node 2", 16, 2),
    ],
)
def test_a_step_has_the_rows_of_every_process_on_every_machine(
    launcher: str, rows: int, here: int
) -> None:
    Path("run.sh").write_text(f"{launcher} {TRL}\npython --nproc_per_node 1 after.py\n")
    values = read_foreign(Path("run.sh"), "trl").composed.values
    assert (values["data"]["global_batch_size"], values["launch"]["nproc"]) == (rows, here)


def test_what_accelerate_sets_is_taken_over() -> None:
    Path("run.sh").write_text(f"accelerate launch --use_deepspeed --zero_stage 2 {TRL}\n")
    engine = read_foreign(Path("run.sh"), "trl").composed.values["engine"]
    assert engine == {"kind": "fsdp2", "reshard_after_forward": False}
    Path("run.sh").write_text(f"accelerate launch --cpu {TRL}\n")
    assert read_foreign(Path("run.sh"), "trl").composed.values["device"] == {"kind": "cpu"}
    Path("ds.json").write_text(json.dumps({"gradient_accumulation_steps": 3}))
    text = f"accelerate launch --use_deepspeed --deepspeed_config_file ds.json {TRL}"
    assert found("trl", text) == [("refused-there", "deepspeed")]


@pytest.mark.parametrize(
    ("lines", "name", "help"),
    [
        ("export IMAGE_MAX_TOKENS_NUM=1800", "IMAGE_MAX_TOKENS_NUM", "`IMAGE_MAX_TOKEN_NUM`"),
        ("export IMAGE_MAX_PIXELS=100000", "IMAGE_MAX_PIXELS", "`MAX_PIXELS`"),
        ("VIDEO_MAX_TOKENS_NUM=99 \\", "VIDEO_MAX_TOKENS_NUM", "`VIDEO_MAX_TOKEN_NUM`"),
        ("export FPS_MAX_FRAME=8", "FPS_MAX_FRAME", "`FPS_MAX_FRAMES`"),
        ("export NPROC_PER_NODES=8", "NPROC_PER_NODES", "`NPROC_PER_NODE`"),
        ("IMAGE_MAX_TOKEN_NUM=1800", "IMAGE_MAX_TOKEN_NUM", "export IMAGE_MAX_TOKEN_NUM=…"),
        ("NPROC_PER_NODE=8  # all", "NPROC_PER_NODE", "export NPROC_PER_NODE=…"),
        ("export IMAGE_MAX_TOKEN_NUM=1800", None, ""),
        ("IMAGE_MAX_TOKEN_NUM=1800\nexport IMAGE_MAX_TOKEN_NUM", None, ""),
        ("set -a\nIMAGE_MAX_TOKEN_NUM=1800", None, ""),
        ("FPS_MAX_FRAMES=12 \\\nIMAGE_MAX_TOKEN_NUM=1800 \\", None, ""),
        ("MAX_PIXEL=100000\nMAX_PIXELS=$MAX_PIXEL \\", None, ""),
        ("GPUS=8\nNPROC_PER_NODE=$GPUS \\", None, ""),
        ("export HF_TOKEN=x TOKENIZERS_PARALLELISM=false NUM_FRAMES=4 MAX_NUM=3", None, ""),
        ("# export IMAGE_MAX_TOKENS_NUM=1800", None, ""),
    ],
)
def test_a_variable_that_does_not_reach_ms_swift_is_told(
    lines: str, name: str | None, help: str
) -> None:
    Path("run.sh").write_text(f"{lines}\n{SWIFT}\n")
    findings = examine_foreign(Path("run.sh"), trainer="ms-swift").findings
    told = [one for one in findings if one.severity != "note"]
    assert [(one.rule, one.parameter) for one in told] == (
        [("setting-without-reader", name)] if name else []
    )
    assert not name or help in (told[0].help or "")
    if name == "IMAGE_MAX_TOKEN_NUM":
        assert "image" not in read_foreign(Path("run.sh"), "ms-swift").composed.values["data"]


def test_frames_are_taken_over_and_a_misspelt_variable_of_a_file_is_told() -> None:
    Path("run.sh").write_text(f"FPS=0.5 FPS_MAX_FRAMES=16 {SWIFT}\n")
    video = read_foreign(Path("run.sh"), "ms-swift").composed.values["data"]["video"]
    assert video == {"fps": 0.5, "max_frames": 16}
    recipe = "model: /models/Qwen3-VL-4B\ndataset: [x.jsonl]\n"
    lost = [("setting-without-reader", "model_kwargs")]
    text = recipe + "model_kwargs: '{\"image_max_tokens_num\": 600}'"
    assert found("ms-swift", text, "run.yaml") == lost
    of_env = recipe + "ENV: {IMAGE_MAX_TOKENS_NUM: '700'}"
    lost = [("setting-without-reader", "IMAGE_MAX_TOKENS_NUM")]
    assert found("ms-swift", of_env, "run.yaml") == lost
    both = recipe + "ENV: {IMAGE_MAX_TOKEN_NUM: 700}\nmodel_kwargs: '{\"image_max_token_num\": 6}'"
    lost = [("setting-without-reader", "IMAGE_MAX_TOKEN_NUM")]
    assert found("ms-swift", both, "run.yaml") == lost


def test_a_bound_in_tokens_of_an_unknown_model_is_said_not_to_be_taken_over() -> None:
    Path("run.sh").write_text(f"export IMAGE_MAX_TOKEN_NUM=9\n{SWIFT}\n".replace("Qwen3-VL", "So"))
    findings = examine_foreign(Path("run.sh"), trainer="ms-swift").findings
    (note,) = [one for one in findings if one.parameter == "IMAGE_MAX_TOKEN_NUM"]
    assert (note.rule, note.severity) == ("no-counterpart", "note")


@pytest.mark.parametrize(
    ("trainer", "text", "help"),
    [
        ("ms-swift", f"{SWIFT} --deepspeed zero4", "did you mean"),
        ("ms-swift", f"{SWIFT} --deepspeed zero3_offlaod", "`zero3_offload`"),
        ("ms-swift", f"{SWIFT} --deepspeed zero3", None),
        ("llamafactory", f"python {FACTORY} --deepspeed zero2", "give the path of a JSON file"),
        ("llamafactory", f"python {FACTORY} --deepspeed examples/ds_z2_config.json", None),
    ],
)
def test_a_name_that_is_none_of_a_trainers_own_files_is_refused(
    trainer: str, text: str, help: str | None
) -> None:
    Path("run.sh").write_text(text)
    findings = examine_foreign(Path("run.sh"), trainer=trainer).findings
    told = [one for one in findings if one.parameter == "deepspeed" and one.severity == "error"]
    assert len(told) == (help is not None)
    assert not help or help in (told[0].help or "")


@pytest.mark.parametrize(
    ("trainer", "more", "refused"),
    [
        ("trl", "", True),
        ("trl", "eval_strategy: 'no'\n", True),
        ("trl", "eval_strategy: epoch\n", False),
        ("ms-swift", "", True),
        ("ms-swift", "split_dataset_ratio: 0.1\n", False),
        ("ms-swift", "val_dataset: [y.jsonl]\n", False),
        ("axolotl", "", True),
        ("axolotl", "val_set_size: 0.1\n", False),
    ],
)
def test_a_schedule_that_follows_a_score_needs_an_evaluation(
    trainer: str, more: str, refused: bool
) -> None:
    base = {
        "trl": "model_name_or_path: m\n",
        "ms-swift": "model: m\ndataset: [x.jsonl]\n",
        "axolotl": "base_model: m\ndatasets: [{path: x}]\n",
    }[trainer]
    word = "lr_scheduler" if trainer == "axolotl" else "lr_scheduler_type"
    text = f"{base}{word}: reduce_lr_on_plateau\n{more}"
    told = [one for one in found(trainer, text, "run.yaml") if one[0] == "refused-there"]
    assert told == ([("refused-there", word)] if refused else [])
    recipe = as_recipe(read_foreign(Path("run.yaml"), trainer), trainer)
    assert "schedule" not in recipe.partition("# Not said here")[0].replace("lr_schedule", "")
    assert refused or f"# {word}: " in recipe


def test_a_word_of_an_earlier_release_is_called_as_it_is_written(tmp_path: Path) -> None:
    Path("run.yaml").write_text("model_name_or_path: m\nwarmup_ratio: 0.1\n")
    done = run_vtool(tmp_path, "validate-config", "--from", "trl", "run.yaml", "--convert")
    assert "warmup_ratio: 0.1  # warmup_ratio" in done.stdout
    Path("run.yaml").write_text("warmup_ratio: 0.1\nlr_scheduler_type: constant\nmax_steps: 9\n")
    done = run_vtool(tmp_path, "validate-config", "--from", "trl", "run.yaml")
    assert "warmup_ratio is 0.1, but lr_scheduler_type constant has no warm-up" in done.stdout


@pytest.mark.parametrize(
    ("line", "trainer"),
    [
        ("accelerate launch --num_processes 2 trl/scripts/sft.py --model_name_or_path m", "trl"),
        ("torchrun examples/sft_vlm.py --dataset_name x --use_peft --lora_r 8", "trl"),
        ("swift sft --model m --dataset rows.jsonl", "ms-swift"),
        ("python swift/cli/sft.py --model m --dataset x --tuner_type lora", "ms-swift"),
        ("llamafactory-cli train run.yaml", "llamafactory"),
        ("torchrun -m verl.trainer.sft_trainer data.train_batch_size=8", "verl"),
        ("python train.py --width 3 --depth 4", None),
        ("echo accelerate is not here", None),
    ],
)
def test_a_script_in_the_place_of_a_recipe_names_the_trainer_that_it_starts(
    tmp_path: Path, line: str, trainer: str | None
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"set -e\n{line}\n")
    help = given_for_recipe("run.sh", script).help or ""
    assert "vtool watch -- bash run.sh" in help
    assert ("--from" in help) == (trainer is not None)
    assert trainer is None or f"--from {trainer} run.sh" in help


def test_a_python_file_of_a_trainer_is_to_be_watched(tmp_path: Path) -> None:
    script = tmp_path / "trl_train.py"
    script.write_text("from trl import SFTTrainer\n")
    with pytest.raises(Findings) as found:
        read_foreign(script, "trl")
    (finding,) = found.value.diagnostics
    assert "vtool watch -- python" in (finding.help or "")
    assert "trl_train.py" in (finding.help or "")
