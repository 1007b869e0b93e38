"""`vtool evaluate --with vllm` on a trained run: answers and losses of vtool's own generation."""

import os
from pathlib import Path

import pytest

from tests.commands import vtool
from tests.runs import read_lines

pytestmark = pytest.mark.soak
ROWS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("VTOOL_VLLM_PYTHON"):
        pytest.skip("not run: VTOOL_VLLM_PYTHON names no environment with vLLM (`make vllm-env`)")
    made = tmp_path_factory.mktemp("with-vllm")
    for recipe in ("digits", "digits_lora"):
        vtool(made, "train", "sft", recipe, "train.steps=120", f"run.name={recipe}")
    return made


@pytest.mark.parametrize("run", ["digits", "digits_lora"])
def test_greedy_answers_and_losses_are_those_of_our_own_generation(folder: Path, run: str) -> None:
    """Weights, tokens and pixels are the same; the runs are short, so that many answers differ from
    the references, and their losses are computed by a second reading.
    """
    asked = ("evaluate", run, "digits", "--limit", str(ROWS))
    vtool(folder, *asked)
    vtool(folder, *asked, "--with", "vllm")
    own, served = (
        read_lines(folder / f"evaluations/{run}-digits{by}/predictions.jsonl")
        for by in ("", "-vllm")
    )
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
