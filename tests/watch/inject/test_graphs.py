"""Models and steps that are recorded in CUDA graphs. There is no GPU here: only the way there."""

from pathlib import Path

import pytest
import torch

from tests.watch.inject import tiny
from vtool.watch.inject.vtool_watch import install
from vtool.watch.inject.vtool_watch.install import Process
from vtool.watch.inject.vtool_watch.settings import WatchSettings


@pytest.fixture
def watched(tmp_path: Path) -> tuple[tiny.Model, torch.optim.Optimizer, Process]:
    model = tiny.make()
    optimizer = torch.optim.AdamW(model.parameters())
    process = Process(WatchSettings(str(tmp_path)))
    process.made(optimizer)
    assert process.watches
    return model, optimizer, process


@pytest.mark.parametrize("part", ["model", "base"])
def test_a_model_of_which_a_graph_is_made_has_no_hook_left(
    watched: tuple[tiny.Model, torch.optim.Optimizer, Process], tmp_path: Path, part: str
) -> None:
    model, optimizer, process = watched
    assert model.model._forward_pre_hooks
    process.record((model if part == "model" else model.model,))
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    loss, n = tiny.loss_of(model, tiny.batch([6, 6]))
    (loss / n).backward()
    process.before_step(optimizer)
    optimizer.step()
    process.after_step(optimizer)
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "learnt"]
    assert why[0] == "the model is recorded in CUDA graphs, which allow no hooks"
    assert tiny.facts(tmp_path, "error") == []


def test_a_graph_of_a_layer_changes_nothing(
    watched: tuple[tiny.Model, torch.optim.Optimizer, Process],
) -> None:
    model, _, process = watched
    process.record((model.model.block,))
    assert model.model._forward_pre_hooks


def test_nothing_is_read_while_a_step_is_recorded(
    watched: tuple[tiny.Model, torch.optim.Optimizer, Process],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer, process = watched
    monkeypatch.setattr(install._State, "process", process)
    monkeypatch.setattr(install, "is_recorded", lambda: True)
    loss, n = tiny.loss_of(model, tiny.batch([6, 6]))
    (loss / n).backward()
    for _ in range(2):
        install._before(optimizer, (optimizer,), {})
        install._after(optimizer, (optimizer,), {})
    assert [fact["kind"] for fact in tiny.facts(tmp_path)] == ["process", "skipped"]
    assert process.watches[0].step == 0
