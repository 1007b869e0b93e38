"""Places of gradients between backward and step, in each setting of the engines that run here."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.watch.forks import Forks
from tests.watch.inject import tiny
from vtool.watch.inject.vtool_watch.kept_gradients import (
    KeptGradients,
    engine_that_keeps,
    gradient_of,
)
from vtool.watch.inject.vtool_watch.model import describe_model

SCRIPT = Path(__file__).parent / "kept_loop.py"


def settings(forks: Forks, engine: str) -> list[dict[str, Any]]:
    done = forks.run(SCRIPT, engine, ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.full
def test_fsdp2_keeps_gradients_that_are_not_reduced(forks: Forks) -> None:
    """For every dtype to compute and to reduce in, resharded or not, reduced at once or not."""
    lines = settings(forks, "fsdp2")
    assert len(lines) == 3 * 3 * 2 * 2
    for one in lines:
        (first, waiting, gone), (second, left, gone_later) = one["seen"]
        assert not gone, one
        assert not gone_later, one
        # a shard of a few numbers may be zeros on this rank, of a bias that attention does not feel
        assert first >= one["trained"] - 2, one
        assert second >= one["trained"] - 2, one
        assert left is None, one
        if one["synced"]:
            assert waiting is None, one
        else:
            assert waiting["tensors"] >= one["trained"] - 2, one
        assert one["gone"], one  # zero_grad() after the reduction


@pytest.mark.full
@pytest.mark.parametrize("engine", ["ddp", "fsdp1"])
def test_gradients_of_other_engines_are_found_after_each_pass(forks: Forks, engine: str) -> None:
    lines = settings(forks, engine)
    assert len(lines) == 4
    for one in lines:
        (first, waiting, gone), (second, left, gone_later) = one["seen"]
        assert waiting is None, one
        assert left is None, one
        assert (gone, gone_later) == (False, False), one
        assert first > 0, one
        assert second > 0, one
        if engine == "ddp":
            assert second >= one["trained"] - 2, one
            assert one["gone"], one


def _model() -> tuple[Any, KeptGradients]:
    model = tiny.make()
    return model, KeptGradients(describe_model(model, model.lm_head))


def test_a_copy_in_float32_has_the_gradient_that_is_stepped_with() -> None:
    parameter: Any = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    parameter.main_grad = torch.full((3,), 2.0)
    assert gradient_of(parameter) is parameter.main_grad
    parameter.main_param = nn.Parameter(torch.ones(3))
    assert gradient_of(parameter) is parameter.main_grad
    parameter.main_param.grad = torch.full((3,), 0.5)  # clipped
    assert gradient_of(parameter) is parameter.main_param.grad
    share = nn.Parameter(torch.ones(2))  # of a distributed optimizer
    share.grad = torch.ones(2)
    parameter.main_param = share
    assert gradient_of(parameter) is parameter.main_grad


def test_megatrons_buffer_is_a_place() -> None:
    model, kept = _model()
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
    assert kept.nonzero() == []
    model.lm_head.weight.main_grad[0, 0] = 1.0
    assert kept.nonzero() == ["lm_head.weight"]


def test_deepspeeds_marks_are_read() -> None:
    """Give parameters what DeepSpeed 0.19 does: a mapping of each parameter, and lists by group."""
    model, kept = _model()
    weight: Any = model.lm_head.weight
    assert engine_that_keeps(kept.found) is None
    groups: dict[int, Any] = {0: None}
    weight._hp_mapping = SimpleNamespace(
        gradient_dict=groups, offload_gradient_dict=None, param_group_index=0
    )
    weight._index_in_param_group = 1
    assert kept.nonzero() == []
    assert not kept.are_gone(taught=True)  # it has them elsewhere until the step's last pass
    groups[0] = [torch.zeros(4), torch.ones(4)]
    assert kept.nonzero() == ["lm_head.weight"]
    assert "DeepSpeed" in str(engine_that_keeps(kept.found))


def test_deepspeeds_third_stage_has_them_until_the_step() -> None:
    model, kept = _model()
    weight: Any = model.lm_head.weight
    weight.ds_id = 7
    name = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"
    weight._z3_optimizer = SimpleNamespace(
        averaged_gradients={0: None}, **{name: {7: torch.ones(4)}}
    )
    assert kept.nonzero() == []
    weight._z3_optimizer.averaged_gradients[0] = [weight]
    assert kept.nonzero() == ["lm_head.weight"]


def test_an_optimizer_of_copies_has_the_gradients_and_an_empty_one_has_none() -> None:
    model, kept = _model()
    own = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert kept.kept_by(own) is None
    copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    other = torch.optim.AdamW(copies, lr=1e-3)
    assert kept.kept_by(other) is None
    copies[0].grad = torch.ones_like(copies[0])
    assert "copies" in str(kept.kept_by(other))


def test_gradients_that_were_thrown_away_are_gone() -> None:
    model, kept = _model()
    tiny.loss_of(model, tiny.batch([9, 5], seed=0))[0].backward()
    assert not kept.are_gone(taught=True)
    model.zero_grad()
    assert kept.are_gone(taught=True)
    assert not kept.are_gone(taught=False)
