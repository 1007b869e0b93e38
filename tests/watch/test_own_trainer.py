"""`vtool train` under `vtool watch`: nothing is found, and the weights are the same to the bit."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from vtool.families import FAMILIES

ROOT = Path(__file__).parents[2]
SHORT = ("train.steps=4", "optim.warmup_steps=2", "data.micro_batch_size=8")
TENSOR_1 = "engine.parallel={tensor: 1, sequence: false}"
PIPELINE = "engine.parallel={tensor: 1, sequence: false, pipeline: 2}"
PACKED = ("data.packing=token_budget", "data.micro_batch_tokens=256")
RUNS: dict[str, Sequence[str]] = {
    "ddp, two ranks": ("digits", "--nproc", "2"),
    "LoRA": ("digits_lora",),
    "packed": ("digits", *PACKED),
    "packed, two ranks": ("digits", *PACKED, "--nproc", "2"),
    "fsdp2": ("digits_fsdp2",),
    "fsdp2, two ranks": ("digits_fsdp2", "--nproc", "2"),
    "megatron, tensor and sequence": ("digits_megatron", "--nproc", "2"),
    "megatron, data": ("digits_megatron", "--nproc", "2", TENSOR_1),
    "megatron, pipeline": ("digits_megatron", "--nproc", "2", PIPELINE),
    **{name: ("digits", f"model.family={name}") for name in FAMILIES},
}
QUICK = ("megatron, tensor and sequence",)


def train(folder: Path, *arguments: str, watched: bool) -> dict[str, object]:
    """Train into a folder; return what the watch concluded, if it was there."""
    facts = folder.with_suffix(".facts")
    watch = ["watch", "--format", "json", "--to", str(facts), "--", sys.executable, "-m", "vtool"]
    command = ["train", "sft", *arguments, *SHORT, f"run.dir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "vtool", *(watch if watched else []), *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if not watched:
        return {}
    text = done.stderr[done.stderr.index("\n{") :]
    (result,) = json.JSONDecoder().raw_decode(text.strip())[0]["results"]
    return dict(result)


def weights(folder: Path) -> str:
    """Return a digest of what was exported."""
    files = sorted((folder / "export").glob("*.safetensors"))
    assert files
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def is_read_and_not_changed(folder: Path, name: str) -> None:
    with_it = train(folder / "with", *RUNS[name], "--no-preflight", watched=True)
    train(folder / "without", *RUNS[name], "--no-preflight", watched=False)
    errors = [one for one in with_it["findings"] if one["severity"] != "note"]  # type: ignore[attr-defined]
    assert errors == []
    assert with_it["verdict"] == "clean"
    assert with_it["checks"]["targets-not-next"] == "passed"  # type: ignore[index]
    assert weights(folder / "with") == weights(folder / "without")


@pytest.mark.full
@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_found_in_our_own_training(tmp_path: Path, name: str) -> None:
    is_read_and_not_changed(tmp_path, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in RUNS if name not in QUICK])
def test_nothing_is_found_in_any_training_of_ours(tmp_path: Path, name: str) -> None:
    is_read_and_not_changed(tmp_path, name)


@pytest.mark.full
def test_what_proofs_before_a_run_train_is_not_watched(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "digits", watched=True)
    assert (result["verdict"], result["findings"]) == ("clean", [])
    assert len((tmp_path / "run/proofs.json").read_text()) > 100
