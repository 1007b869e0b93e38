"""Messages of the first hour that lead on: they name what was given, and what reads it."""

import json
import shlex
from pathlib import Path

import pytest

import vtool
from tests.commands import run_vtool
from tests.rows import chat, write_rows
from vtool.data.json_lines import JsonLines
from vtool.devices import place
from vtool.diagnostics import Findings

LLAMA = "model_name_or_path: Qwen/Qwen2-VL-2B\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
AXOLOTL = "base_model: Qwen/Qwen2-VL-2B\nadapter: lora\nmicro_batch_size: 1\ndatasets: []\n"
VERL = "data: {train_files: rows.parquet, micro_batch_size_per_gpu: 2}\ntrainer: {test_freq: 5}\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lf.yaml").write_text(LLAMA)
    Path("axolotl.yaml").write_text(AXOLOTL)
    Path("verl.yaml").write_text(VERL)
    Path("swift.sh").write_text("swift sft --model X --dataset rows.jsonl --lora_rank 8\n")
    Path("trl.sh").write_text(
        "accelerate launch --config_file gone.yaml trl/scripts/sft.py --dataset_name x\n"
        "accelerate launch sft.py\n"
    )
    Path("short.yaml").write_text("model_name_or_path: x\nlearning_rate: 1e-4\n")
    Path("mine.yaml").write_text("data: {global_batch_size: 8}\n")
    Path("n.json").write_text("[1, 2, 3]")
    Path("a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Path("rows.parquet").touch()
    for name in ("rows.jsonl", "a,b.jsonl", "a=b.jsonl"):
        write_rows(Path(name), [chat("What?", "It.")])
    said = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "Red."}]
    Path("apart.json").write_text(json.dumps([{"image": "red.png", "conversations": said}]))
    Path("both").mkdir()
    Path("both/metadata.jsonl").write_text('{"question": "What?", "answer": "It."}\n')
    write_rows(Path("both/rows.jsonl"), [chat("What?", "It.")])
    Path("img").mkdir()
    Path("img/red.png").touch()
    Path("models/Qwen2.5-VL").mkdir(parents=True)
    gemma = {"model_type": "internlm_x", "architectures": ["Gemma3"]}
    Path("models/Qwen2.5-VL/config.json").write_text(json.dumps(gemma))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "validate-config --from llamafactory axolotl.yaml",
            "`axolotl.yaml` is a recipe of axolotl, and not of LLaMA-Factory",
        ),
        ("validate-config --from verl lf.yaml", "help: vtool validate-config --from llamafactory"),
        ("validate-config --from axolotl verl.yaml", "is a recipe of verl, and not of axolotl"),
        ("validate-config --from trl swift.sh", "help: vtool validate-config --from ms-swift swi"),
        ("validate-config --from trl trl.sh", "--config_file: gone.yaml is not here"),
        ("validate-config --from verl verl.yaml", "help: give data.val_files, or set trainer.test"),
        ("validate-config short.yaml", "--from trl|llamafactory|ms-swift|verl|axolotl short.yaml`"),
        (
            "train sft 'swift sft --model X'",
            "`swift sft --model X` is a command, and no recipe\n"
            "  help: vtool watch -- swift sft --model X shows",
        ),
        ("train sft 'swift sft --model X'", "vtool validate-config --from ms-swift FILE checks"),
        ("train sft rows.jsonl finetune", "its data.train: finetune 'data.train=[rows.jsonl]'"),
        (
            "verify both",
            "metadata.jsonl:1 is of no known layout, and others in both are of messages",
        ),
        ("train sft rows.jsnl", "help: did you mean `rows.jsonl`"),
        ("train sft mine/nothere.yaml", "help: give a file that is there; paths begin at "),
        (
            "verify apart.json",
            "`img/red.png`? Or name the folder of all images: data.train=[{format: …, path: …,"
            " image_folder: img}]",
        ),
        ("train sft 'python train.py'", "help: vtool watch -- python train.py shows"),
        ("train sft digits --lora.rank 8", "settings are KEY=VALUE, such as lora.rank=16"),
        (
            "train sft digits 8",
            "`8` is not KEY=VALUE\n  --> command line\n  help: write KEY=VALUE, ",
        ),
        ("validate-config digits_lora lora.rank=8.5", "help: write 8 or 9"),
        ("validate-config digits_lora lora.rank=8.0", "help: write 8\n"),
        (
            "train sft data.train=a,b.jsonl",
            "train sft rows \"data.train='a,b.jsonl'\"; or the rows",
        ),
        (
            "train sft data.train=a=b.jsonl",
            "train sft rows \"data.train='a=b.jsonl'\"; or the rows",
        ),
        ("validate-config a.png", "`vtool predict MODEL a.png 'What is this?'` asks a model"),
        ("chat rows.jsonl", "rows.jsonl is a file, and no folder of a model or a run"),
        (
            "validate-config rows model.path=models/Qwen2.5VL",
            "help: did you mean `models/Qwen2.5-VL`?",
        ),
        ("explain num_generations", "a word of training by rewards (GRPO, PPO)"),
        (
            "validate-config rows.jsonl model.path=models/Qwen2.5-VL",
            "`vtool load-check FOLDER`, of a folder with its weights, whether they land",
        ),
    ],
)
def test_a_message_leads_on(command: str, said: str, tmp_path: Path) -> None:
    assert said in run_vtool(tmp_path, *shlex.split(command)).output


@pytest.mark.parametrize("name", ["a,b.jsonl", "a=b.jsonl"])
def test_the_setting_that_is_proposed_is_read(name: str, tmp_path: Path) -> None:
    done = run_vtool(tmp_path, "validate-config", "rows", f"data.train='{name}'")
    assert done.status == 0, done.output


def test_a_version_is_no_extension(tmp_path: Path) -> None:
    out = run_vtool(tmp_path, "validate-config", "rows", "model.path=models/Qwen2.5VL").output
    assert "models/Qwen2.5VL is not there" in out
    assert "which differs in" not in out


def test_healthy_twins_are_not_led_astray(tmp_path: Path) -> None:
    for command in ("--from axolotl axolotl.yaml", "--from verl verl.yaml", "--from trl trl.sh"):
        done = run_vtool(tmp_path, "validate-config", *command.split())
        assert "recipe-of-another-trainer" not in done.output
    assert (
        "word of other trainers" not in run_vtool(tmp_path, "validate-config", "mine.yaml").output
    )
    Path("gone.yaml").write_text("num_processes: 2\n")
    assert (
        "is not here"
        not in run_vtool(tmp_path, "validate-config", "--from", "trl", "trl.sh").output
    )


def test_a_list_of_numbers_is_not_called_text() -> None:
    with pytest.raises(Findings, match=r"n\.json is a list, and not of rows: it begins with '1'"):
        JsonLines("n.json")


def test_several_topics_are_explained(tmp_path: Path) -> None:
    out = run_vtool(tmp_path, "explain", "optim.lr", "VT101").output
    assert out.startswith("optim.lr: ")
    assert "\n\nunknown-key (VT101, error)\n" in out


def test_python_says_how_overrides_are_written() -> None:
    for wrong in ({"steps": 3}, {"train": {"steps": 3}}):
        with pytest.raises(TypeError, match=r'"train\.steps=30"'):
            vtool.load("digits", **wrong)
    with pytest.raises(TypeError, match="a recipe is a name or a path, not dict"):
        vtool.load({"train": {}})  # type: ignore[arg-type]


def test_an_exception_of_a_function_is_plain_findings() -> None:
    Path("odd.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    with pytest.raises(vtool.Findings) as raised:
        vtool.audit("odd.jsonl")
    assert type(raised.value) is vtool.Findings


def test_one_process_needs_one_device() -> None:
    run = vtool.load("digits", "device.kind=cuda").run
    with pytest.raises(Findings, match="1 process needs a CUDA device, and torch"):
        place(run, 0, 1)
    with pytest.raises(Findings, match="2 processes need a CUDA device each, and torch"):
        place(run, 0, 2)
