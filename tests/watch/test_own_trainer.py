"""`vtool train` under `vtool watch`: nothing is found, and the weights are the same to the bit."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.watch.forks import ROOT, Forks, outside
from vtool.diagnostics.result import Result
from vtool.families import FAMILIES
from vtool.watch.conclude import conclude_folder

SHORT = (
    "train.steps=4",
    "optim.warmup_steps=2",
    "data.global_batch_size=16",
    "data.micro_batch_size=8",
    "data.train=[{format: digits, split: train, limit: 64}]",
    "data.validation=[]",
    "data.test=[]",
    "evaluation.every_steps=null",
)
PROGRAM = "from vtool.cli.app import main\nmain()\n"
MODULES = (
    "hydra",
    "matplotlib.pyplot",
    "megatron.core.distributed",
    "megatron.core.models.gpt",
    "megatron.core.optimizer",
    "peft",
    "torch._dynamo",
    "vtool.api",
    "vtool.cli.train",
    "vtool.engines.megatron.engine",
    "vtool.report.page",
    "vtool.training.launch",
    "vtool.training.sft",
)
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
LAUNCHED = "ddp, two ranks"
IN_SOAK = ("packed, two ranks", "fsdp2", "megatron, data", "megatron, pipeline", "glm4v")
"""Runs whose cases are also in others, or in the watch's own tests of Megatron-core."""


@pytest.fixture(scope="module")
def own_forks() -> Iterator[Forks]:
    """Fork trainings of ours; two ranks as an outer torchrun starts them."""
    with Forks(*MODULES) as made:
        yield made


def command(folder: Path, name: str) -> list[str]:
    return ["train", "sft", *RUNS[name], *SHORT, "--no-preflight", f"run.dir={folder}"]


def train(forks: Forks, folder: Path, words: list[str], facts: Path | None) -> str:
    """Train into a folder, on ranks that are forked; return a digest of what was exported."""
    ranks = int(words[words.index("--nproc") + 1]) if "--nproc" in words else 1
    done = forks.run_text(PROGRAM, *words, facts=facts, ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    return weights(folder)


def weights(folder: Path) -> str:
    files = sorted((folder / "export").glob("*.safetensors"))
    assert files
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def is_clean(facts: Path) -> Result:
    (result,) = conclude_folder(facts, "run", None)
    assert [one for one in result.findings if one.severity != "note"] == []
    assert result.verdict == "clean"
    assert result.checks["targets-not-next"] == "passed"
    return result


@pytest.mark.full
def test_nothing_is_found_in_a_training_that_starts_its_own_ranks(
    tmp_path: Path, own_forks: Forks
) -> None:
    watched, plain, facts = tmp_path / "with", tmp_path / "without", tmp_path / "facts"
    vtool = [sys.executable, "-m", "vtool"]
    watch = [*vtool, "watch", "--format", "json", "--to", str(facts), "--"]
    done = subprocess.run(
        [*watch, *vtool, *command(watched, LAUNCHED)],
        cwd=ROOT,
        env=outside(),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stderr[done.stderr.index("\n{") :]
    (printed,) = json.JSONDecoder().raw_decode(text.strip())[0]["results"]
    assert (printed["verdict"], printed["checks"]) == ("clean", dict(is_clean(facts).checks))
    assert weights(watched) == train(own_forks, plain, command(plain, LAUNCHED), None)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak) if name in IN_SOAK else name
        for name in RUNS
        if name != LAUNCHED
    ],
)
def test_nothing_is_found_in_our_own_training(tmp_path: Path, own_forks: Forks, name: str) -> None:
    watched, plain, facts = tmp_path / "with", tmp_path / "without", tmp_path / "facts"
    with_it = train(own_forks, watched, command(watched, name), facts)
    assert with_it == train(own_forks, plain, command(plain, name), None)
    is_clean(facts)


@pytest.mark.full
def test_what_proofs_before_a_run_train_is_not_watched(tmp_path: Path, own_forks: Forks) -> None:
    run, facts = tmp_path / "run", tmp_path / "facts"
    words = ["train", "sft", "digits", *SHORT, f"run.dir={run}"]
    train(own_forks, run, words, facts)
    assert is_clean(facts).findings == ()
    assert len((run / "proofs.json").read_text()) > 100
