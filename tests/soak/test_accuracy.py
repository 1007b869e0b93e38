"""The digits are learnt, whatever the seed:

at least 97 % of the test scans, in at most 600 steps.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import read_lines
from vtool.families import FAMILIES

ROWS = 5 * 1258
SAMPLES = 3 * ROWS + 9 * 32


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_the_test_scans_are_read(tmp_path: Path, seed: int) -> None:
    command = [
        sys.executable,
        "-m",
        "vtool",
        "train",
        "sft",
        "digits",
        f"run.seed={seed}",
        f"run.dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    seconds, peak = result["train_seconds"], result["peak_memory_mib"]
    print(
        f"seed {seed}: test exact match {result['test_exact_match']:.4f}, {result['steps']} steps,"
        f" {seconds:.0f} s, peak {peak} MiB"
    )
    assert result["test_exact_match"] >= 0.97
    assert result["steps"] <= 600
    assert result["peak_memory_mib"] <= 2048
    # What was seen is counted from the batches: three epochs of 197 steps, and 9 steps.
    assert result["ledger"]["distinct"] == ROWS
    samples = sum(
        line["samples"] for line in read_lines(tmp_path / "run/metrics.jsonl") if "loss" in line
    )
    assert result["ledger"]["samples"] == samples == SAMPLES


@pytest.mark.soak
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("digits_fsdp2", ()),
        ("digits_megatron", ()),
        ("digits_megatron", ("engine.parallel={tensor:1,sequence:false}",)),
        ("digits_megatron", ("engine.parallel={tensor:1,sequence:false,pipeline:2}",)),
    ],
)
def test_two_processes_of_each_engine_read_them_as_well(
    tmp_path: Path, recipe: str, more: tuple[str, ...]
) -> None:
    command = [
        sys.executable,
        "-m",
        "vtool",
        "train",
        "sft",
        recipe,
        "--nproc",
        "2",
        *more,
        f"run.dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    print(
        f"{recipe} {more}: test exact match {result['test_exact_match']:.4f}, {result['steps']}"
        f" steps, {result['train_seconds']:.0f} s"
    )
    assert result["test_exact_match"] >= 0.97
    assert result["steps"] <= 600
    assert result["ledger"]["samples"] == SAMPLES


@pytest.mark.soak
def test_adapters_on_random_weights_read_the_test_scans_too(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "vtool",
        "train",
        "sft",
        "digits_lora",
        "--nproc",
        "2",
        f"run.dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    print(
        f"digits_lora: test exact match {result['test_exact_match']:.4f}, {result['steps']} steps,"
        f" {result['train_seconds']:.0f} s"
    )
    assert result["test_exact_match"] >= 0.97
    assert result["steps"] <= 600
    assert result["trained_parameters"] < result["parameters"] / 4


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_reads_the_test_scans_by_the_same_recipe(tmp_path: Path, family: str) -> None:
    more = (f"model.family={family}", "device.threads=1", f"run.dir={tmp_path / 'run'}")
    command = [sys.executable, "-m", "vtool", "train", "sft", "digits", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    print(
        f"{family}: test exact match {result['test_exact_match']:.4f}, {result['steps']} steps,"
        f" {result['train_seconds']:.0f} s"
    )
    assert result["test_exact_match"] >= 0.95
    assert result["steps"] <= 900
