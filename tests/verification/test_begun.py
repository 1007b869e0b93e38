"""Proofs and live objects of a recipe that begins with given weights (`train.from`)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vtool.config.load import load_run
from vtool.diagnostics import Findings
from vtool.verification.context import build_proof_context
from vtool.verification.live import check_live
from vtool.verification.not_provable import NotProvable


def begun_from(weights: Path, *more: str) -> tuple[str, ...]:
    return (f"train.from={weights}", "run.dir=elsewhere", *more)


@pytest.fixture
def run(trained: tuple[Path, str]) -> Path:
    return trained[0] / "runs" / "digits"


def test_the_small_run_says_that_its_weights_are_others(run: Path, tmp_path: Path) -> None:
    asked = load_run("digits", begun_from(run)).run
    assert f"train.from {run} → random weights" in build_proof_context(asked, tmp_path).changes


def test_at_full_size_the_weights_of_an_export_are_computed_with(run: Path, tmp_path: Path) -> None:
    asked = load_run("digits", begun_from(run / "export")).run
    context = build_proof_context(asked, tmp_path, full_size=True)
    # what was exported, by the names that it has in the model
    exported = load_file(run / "checkpoints" / "step-000040" / "model.safetensors")
    own = dict(context.bare.named_parameters())
    assert own.keys() <= exported.keys()
    assert all(torch.equal(own[name], exported[name]) for name in own)
    assert not any("train.from" in change for change in context.changes)


def test_at_full_size_a_checkpoint_is_not_run_with_what_to_do(run: Path, tmp_path: Path) -> None:
    asked = load_run("digits", begun_from(run)).run
    with pytest.raises(NotProvable, match="is a checkpoint: write one by vtool export RUN, or"):
        build_proof_context(asked, tmp_path, full_size=True)


@pytest.mark.full
def test_weights_of_another_family_are_found_before_training(run: Path, tmp_path: Path) -> None:
    loaded = load_run("digits", begun_from(run, "model.family=glm4v"))
    with pytest.raises(Findings) as raised:
        build_proof_context(loaded.run, tmp_path)
    assert [each.rule for each in raised.value.diagnostics] == ["unfit-weights"]
    live = check_live(loaded)
    assert [each.rule for each in live.findings] == ["unfit-weights"]
    assert live.checks["setting-not-arrived"] == "not-run"
