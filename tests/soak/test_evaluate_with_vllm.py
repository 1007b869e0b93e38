"""`vtool evaluate --with vllm` on a trained run: answers and losses of vtool's own generation."""

import os
import shutil
from pathlib import Path

import pytest

from tests.commands import vtool
from tests.runs import read_lines

pytestmark = pytest.mark.soak
ROWS = 50


def python() -> None:
    """Skip where no vLLM is named."""
    if not os.environ.get("VTOOL_VLLM_PYTHON"):
        pytest.skip("not run: VTOOL_VLLM_PYTHON names no environment with vLLM (`make vllm-env`)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python()
    made = tmp_path_factory.mktemp("with-vllm")
    for recipe in ("digits", "digits_lora"):
        vtool(made, "train", "sft", recipe, "train.steps=120", f"run.name={recipe}")
    return made


@pytest.mark.parametrize("run", ["digits", "digits_lora"])
def test_greedy_answers_and_losses_are_those_of_our_own_generation(folder: Path, run: str) -> None:
    """Weights, tokens and pixels are the same; the runs are short, so that many answers differ from
    the references, and their losses are computed by a second reading.
    """
    compare(folder, run)


def test_a_merged_base_in_nf4_is_served_as_what_was_trained(tmp_path: Path) -> None:
    python()
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    packed = ("lora.base_dtype=nf4", "train.steps=40", "run.dir=packed")
    vtool(tmp_path, "train", "sft", "digits_lora", *packed)
    vtool(tmp_path, "export", "packed", "--merge")
    compare(tmp_path, "packed/merged")


def compare(folder: Path, subject: str) -> None:
    asked = ("evaluate", subject, "digits", "--limit", str(ROWS))
    vtool(folder, *asked, "--to", "own")
    vtool(folder, *asked, "--to", "served", "--with", "vllm")
    own, served = (read_lines(folder / by / "predictions.jsonl") for by in ("own", "served"))
    shutil.rmtree(folder / "own")
    shutil.rmtree(folder / "served")
    assert len(own) == len(served) == ROWS
    assert [one["answer"] for one in own] == [one["answer"] for one in served]
    assert [one["tokens"] for one in own] == [one["tokens"] for one in served]
    for one, other in zip(own, served, strict=True):
        assert other["nll"] == pytest.approx(one["nll"], abs=1e-4)
        assert other["confidence"] == pytest.approx(one["confidence"], abs=1e-4)
    assert any(one["answer"] != one["reference"] for one in own)


def test_drawn_answers_follow_the_seed(folder: Path) -> None:
    asked = ("evaluate", "digits", "digits", "--limit", "30", "--with", "vllm", "--sample", "1.5")
    found = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        vtool(folder, *asked, "--seed", seed, "--to", name)
        found.append([one["answer"] for one in read_lines(folder / name / "predictions.jsonl")])
    assert found[0] == found[1] != found[2]
