"""A newcomer's first commands: train on the digits, ask the model, export it, read the page."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool, vtool
from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import read_lines
from tests.shared_runs import SHORT


@pytest.mark.full
def test_the_digits_are_learnt_by_the_command_of_the_readme(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vtool", "train", "sft", "digits"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=True
    )
    result = json.loads((tmp_path / "runs/digits/result.json").read_text())
    # 0.97 and more, by `make soak`; another processor may round a scan or two away
    assert result["test_exact_match"] >= 0.95
    assert result["ledger"]["distinct"] == result["ledger"]["rows"] == 5 * 1258
    assert result["steps"] <= 600
    assert f"test exact match: {result['test_exact_match']:.2%}" in done.stdout
    assert done.stdout.rstrip().endswith("report: runs/digits/report.html")


def test_a_run_says_how_it_ended(trained: tuple[Path, str]) -> None:
    folder, output = trained
    result = json.loads((folder / "runs/digits/result.json").read_text())
    assert result["steps"] == 40
    assert (result["ledger"]["distinct"], result["ledger"]["rows"]) == (40 * 32, 5 * 1258)
    assert f"test exact match: {result['test_exact_match']:.2%}" in output
    assert _last_lines(output)[-1] == "report: runs/digits/report.html"


def _last_lines(output: str) -> list[str]:
    """Return the lines of a run's result, without progress and findings."""
    starts = ("ledger: ", "test exact match: ", "export: ", "report: ")
    return [line for line in output.splitlines() if line.startswith(starts)]


def test_a_second_start_leaves_the_run_alone_and_ends_the_same(trained: tuple[Path, str]) -> None:
    folder, output = trained
    again = vtool(folder, "train", "sft", "digits", *SHORT)
    assert "finished its 40 steps already" in again
    assert _last_lines(again) == _last_lines(output)


def test_the_model_can_be_asked(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    shown = next(
        row for row in read_lines(folder / "runs/digits/predictions.jsonl") if "image" in row
    )
    image = f"runs/digits/{shown['image']}"
    done = run_vtool(folder, "predict", "digits", image)
    assert (done.status, done.stdout) == (0, f"{shown['answer']}\n")
    assert f"asked, 1 image: {shown['question']} (the question of the run's first" in done.stderr
    exported = ("runs/digits/export", "--image", image, "--question", shown["question"])
    assert run_vtool(folder, "predict", *exported).stdout == done.stdout


def test_the_export_is_opened_by_transformers_with_the_same_weights(
    trained: tuple[Path, str],
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    folder, _ = trained
    model: Any = AutoModelForImageTextToText.from_pretrained(folder / "runs/digits/export")
    weights = load_file(folder / "runs/digits/checkpoints/step-000040/model.safetensors")
    loaded = dict(model.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all((loaded[name] == weights[name]).all() for name in weights)


def test_exporting_again_from_the_checkpoint_gives_the_same_bytes(
    trained: tuple[Path, str],
) -> None:
    folder, _ = trained
    assert "step 40 exported to" in vtool(folder, "export", "runs/digits", "--output", "again")
    for file in (folder / "runs/digits/export").iterdir():
        assert (folder / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_effective_config_is_a_recipe_of_the_same_run(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    assert "already" in vtool(
        folder, "train", "sft", "runs/digits/config.yaml", "run.dir=runs/digits"
    )


@pytest.mark.full
def test_a_model_folder_is_fine_tuned(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    arguments = [
        "digits",
        "model.path=runs/digits/export",
        "model.size=null",
        "run.name=tuned",
        "train.steps=4",
        "optim.warmup_steps=0",
    ]
    output = vtool(
        folder,
        "train",
        "sft",
        *arguments,
        "optim.lr=1e-6",
        "evaluation.every_steps=null",
        "checkpoint.every_steps=null",
        "data.test=[{format: digits, split: validation}]",
    )
    first, *_ = read_lines(folder / "runs/tuned/metrics.jsonl")
    before = [
        line["loss"] for line in read_lines(folder / "runs/digits/metrics.jsonl") if "loss" in line
    ]
    # it begins where the other run ended, and not where that began
    assert first["loss"] < 1.2 * max(before[-5:]) < 0.7 * before[0]
    assert "test exact match" in output


@pytest.mark.full
def test_a_model_folder_with_a_weight_missing_is_refused(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(trained[0] / "runs/digits/export", broken)
    weights = load_file(broken / "model.safetensors")
    weights = {
        name: tensor
        for name, tensor in weights.items()
        if not name.endswith("visual.patch_embed.proj.weight")
    }
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    output = vtool(
        tmp_path, "train", "sft", "digits", f"model.path={broken}", "model.size=null", status=1
    )
    assert "model-does-not-load VT502" in output
    assert "visual.patch_embed.proj.weight" in output


def test_an_image_that_is_not_there_is_reported(trained: tuple[Path, str]) -> None:
    assert "there is no image nothing.png" in vtool(
        trained[0], "predict", "runs/digits", "--image", "nothing.png", status=2
    )


def test_a_folder_that_is_no_run_is_reported(tmp_path: Path) -> None:
    for command in ("predict", "export"):
        assert "not-a-run VT807" in vtool(tmp_path, command, str(tmp_path), status=2)


@pytest.mark.parametrize(
    "preflight",
    [
        pytest.param(("--no-preflight",), marks=pytest.mark.full),
        pytest.param((), marks=pytest.mark.soak),
    ],
    ids=["straight away", "proved first"],
)
def test_rows_of_ones_own_train_on_two_ranks(tmp_path: Path, preflight: tuple[str, ...]) -> None:
    write_rows(tmp_path / "my.jsonl", mixed_rows(tmp_path, 9, text_only=(0, 4, 7)))
    rows = "data.train=[{format: messages, path: my.jsonl}]"
    settings = (rows, "train.epochs=2", "optim.warmup_steps=0", "data.global_batch_size=4")
    output = vtool(tmp_path, "train", "sft", "rows", *settings, "--nproc", "2", *preflight)
    assert (
        "9 rows = 9 kept + 0 dropped; 9 distinct rows trained on, 18 samples (2.00 epochs)"
        in output
    )


def test_every_finding_of_the_rows_is_printed_and_nothing_starts(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 280, 280)
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:3000])
    write_rows(
        tmp_path / "my.jsonl",
        [
            chat("a", "b"),
            '{"messages":',
            chat("<image>", "b") | {"images": ["a.png"]},
            chat("a", " "),
        ],
    )
    rows = "data.train=[{format: messages, path: my.jsonl}]"
    output = vtool(tmp_path, "train", "sft", "rows", rows, status=1)
    for words in (
        "broken-row VT601",
        "my.jsonl:2",
        "broken-image VT604",
        "a.png",
        "no-assistant-turn VT607",
        "3 of 4 rows cannot be used",
    ):
        assert words in output, output
    assert not (tmp_path / "runs/rows/metrics.jsonl").exists()


def test_verify_shows_what_is_supervised_and_exits_clean(tmp_path: Path) -> None:
    write_rows(tmp_path / "my.jsonl", mixed_rows(tmp_path, 5, text_only=(0,)))
    output = vtool(tmp_path, "verify", "my.jsonl", "data.max_length=200")
    assert "5 rows = 5 kept + 0 dropped" in output
    assert "⟦yes<|im_end|>⟧" in output
    assert "no findings" in output
    # without data.max_length, no length was looked at
    assert "5 not run" in vtool(tmp_path, "verify", "my.jsonl")


def test_verify_finds_what_training_would(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "my.jsonl", [chat("a", "b"), chat("word " * 40, "b"), chat("<image>", "b")]
    )
    output = vtool(
        tmp_path, "verify", "my.jsonl", "data.max_length=30", "--format", "json", status=1
    )
    (result,) = json.loads(output)["results"]
    assert result["subject"] == "my.jsonl"
    assert result["verdict"] == "unsafe"
    assert [finding["rule"] for finding in result["findings"]] == [
        "overlong-row",
        "placeholder-mismatch",
        "too-many-dropped-rows",
    ]
    assert [finding["origin"]["line"] for finding in result["findings"][:2]] == [2, 3]
    assert result["checks"]["overlong-row"] == "failed"
    assert result["checks"]["broken-row"] == "passed"


def test_verify_of_a_file_that_is_not_there_says_where_it_looked(tmp_path: Path) -> None:
    assert "path-not-found" in vtool(tmp_path, "verify", "none.jsonl", status=2)


@pytest.mark.full
def test_verify_of_a_recipe_audits_every_split(tmp_path: Path) -> None:
    """Proofs cannot be made on these rows: they would take far longer than the audit."""
    write_rows(tmp_path / "my.jsonl", ['{"messages": []}'] * 700 + [chat("a", "b")])
    rows = ("data.train=[{format: messages, path: my.jsonl}]", "data.max_dropped_rows=700")
    output = vtool(tmp_path, "verify", "digits", *rows, "--format", "concise")
    for words in ("data.train: 701 rows", "data.validation: 180 rows", "data.test: 359 rows"):
        assert words in output


@pytest.mark.soak
def test_verify_of_a_recipe_audits_every_split_and_proves_it(tmp_path: Path) -> None:
    output = vtool(tmp_path, "verify", "digits", "--format", "concise")
    for words in ("data.train: 6,290 rows", "data.validation: 180 rows", "data.test: 359 rows"):
        assert words in output
