"""A recipe's own values that its defaults list overrides."""

from pathlib import Path

import pytest

from tests.commands import vtool
from vtool.config.load import examine
from vtool.diagnostics import Diagnostic


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lost(text: str, *overrides: str) -> list[Diagnostic]:
    Path("mine.yaml").write_text(text)
    found = examine("mine.yaml", overrides).findings
    return [each for each in found if each.rule == "own-value-loses"]


def test_each_value_that_loses_is_named_with_both_places(tmp_path: Path) -> None:
    text = "defaults: [_self_, digits]\noptim: {lr: 0.5}\ntrain:\n  steps: 9\n"
    lr, steps = lost(text)
    assert (lr.severity, lr.parameter, lr.expected, lr.seen) == (
        "error",
        "optim.lr",
        "0.5",
        "3.0e-3",
    )
    assert lr.origin is not None
    assert (lr.origin.file, lr.origin.line) == ("mine.yaml", 2)
    assert "3.0e-3 in recipes/digits.yaml:22, which wins" in lr.message
    assert (steps.parameter, steps.seen) == ("train.steps", "600")
    printed = vtool(tmp_path, "validate-config", "mine.yaml", status=1)
    assert "error[own-value-loses VT253]: `optim.lr` is 0.5 here" in printed


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [digits, _self_]\noptim: {lr: 0.5}\n",
        "defaults: [digits]\noptim: {lr: 0.5}\n",
        "defaults: [_self_, digits]\nrun: {name: mine}\n",
        "defaults: [_self_, digits]\noptim: {lr: 0.003}\n",
    ],
)
def test_a_recipe_none_of_whose_values_is_lost_has_no_finding(text: str) -> None:
    assert lost(text) == []


def test_a_value_that_is_set_again_behind_both_has_not_lost(tmp_path: Path) -> None:
    text = "defaults: [_self_, digits]\noptim: {lr: 0.5}\n"
    assert lost(text, "optim.lr=0.1") == []
    Path("base.yaml").write_text(text + "train: {steps: 9}\n")
    (steps,) = lost("defaults: [base, _self_]\noptim: {lr: 0.7}\n")
    assert steps.origin is not None
    assert (steps.parameter, steps.origin.file) == ("train.steps", "base.yaml")


def test_a_group_that_the_command_line_may_change_is_a_warning() -> None:
    (found,) = lost(
        "kind: sft\ndefaults: [_self_, /model: qwen2_5_vl_tiny, /optim: adamw, /engine: ddp]\n"
        "data: {train: [{format: digits}], micro_batch_size: 1, global_batch_size: 1}\n"
        "optim: {lr: 0.5, clip_norm: 7, weight_decay: 0.10}\ntrain: {steps: 1}\n"
    )
    assert (found.severity, found.parameter, found.seen) == ("warning", "optim.clip_norm", "1.0")


def test_a_list_that_loses_is_one_finding() -> None:
    found = lost("defaults: [_self_, digits]\ndata: {train: [a.jsonl, b.jsonl]}\n")
    assert [(each.parameter, each.expected) for each in found] == [("data.train", "a list")]
