"""Steps that are not only the optimizer's: loss scalers, and passes at weights of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.watch.inject import tiny
from tests.watch.inject.test_watch import Loop
from vtool.watch.inject.vtool_watch import capture


def scaled(folder: Path, scale: float, steps: int, fused: bool) -> None:
    """Train with a scaled loss; the last hidden state's gradient overflows in some steps."""
    model = tiny.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    loop = Loop(folder, model)
    loop.optimizer = optimizer
    assert loop.process is not None
    loop.process.made(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer.register_step_pre_hook(lambda o, *_: loop.process.before_step(o))
    optimizer.register_step_post_hook(lambda o, *_: loop.process.after_step(o))
    for step in range(steps):
        with torch.autocast("cpu", dtype=torch.float16):
            loss, tokens = tiny.loss_of(model, tiny.batch([9, 5], seed=step))
        scaler.scale(loss / tokens).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_a_scaler_has_yet_to_divide(tmp_path: Path, fused: bool) -> None:
    scaled(tmp_path, 1024.0, 3, fused)
    arrived, stepped = tiny.facts(tmp_path, "arrived"), tiny.facts(tmp_path, "stepped")
    assert [one["engine_factor"] for one in arrived] == pytest.approx([1] * 3, rel=1e-2)
    assert max(t["off"] for one in stepped for t in one["reference"].values()) < 16


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_gives_up_are_not_steps(tmp_path: Path, fused: bool) -> None:
    scaled(tmp_path, 2.0**24, 14, fused)
    arrived = tiny.facts(tmp_path, "arrived")
    assert [one["step"] for one in arrived] == [0, 1, 2]
    assert not any(one["nonfinite"] for one in arrived)


def test_a_correction_in_float32_is_no_other_step(tmp_path: Path) -> None:
    model = tiny.make()
    loop = Loop(tmp_path, model)
    loop.optimizer.param_groups[0]["lr"] = torch.tensor(1e-3)
    for _ in range(3):
        loop.backward()
        assert loop.process is not None
        loop.process.before_step(loop.optimizer)
        _step_in_float32(loop.optimizer)
        loop.process.after_step(loop.optimizer)
        loop.optimizer.zero_grad()
    for stepped in tiny.facts(tmp_path, "stepped"):
        assert max(tensor["off"] for tensor in stepped["reference"].values()) < 16


def _step_in_float32(optimizer: torch.optim.Optimizer) -> None:
    """Make a step as `capturable=True` does on a GPU: its corrections are tensors."""
    (group,) = optimizer.param_groups
    b1, b2 = group["betas"]
    with torch.no_grad():
        for p in group["params"]:
            state = optimizer.state[p]
            if not state:
                state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p))
                state["exp_avg_sq"] = torch.zeros_like(p)
            state["step"] += 1
            p.mul_(1 - group["lr"] * group["weight_decay"])
            state["exp_avg"].lerp_(p.grad, 1 - b1)
            state["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            size = group["lr"] / (1 - b1 ** state["step"])
            root = (1 - b2 ** state["step"]).sqrt()
            p.sub_(size * state["exp_avg"] / (state["exp_avg_sq"].sqrt() / root + group["eps"]))


def test_passes_at_other_weights_are_not_read(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for _ in range(2):
        before = [p.detach().clone() for p in loop.model.parameters()]
        loop.backward()
        with torch.no_grad():
            for p in loop.model.parameters():
                p.add_(p.grad, alpha=0.1)
        loop.optimizer.zero_grad()
        loop.backward()
        with torch.no_grad():
            for p, was in zip(loop.model.parameters(), before, strict=True):
                p.copy_(was)
        loop.update()
        loop.optimizer.zero_grad()
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "learnt"]
    assert why == ["weights change between the passes of a step, as in SAM"]
    assert all(fact["solved"] == 0 for fact in tiny.facts(tmp_path, "micro"))


def test_passes_without_a_step_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_MOST_SEEN", 4)
    monkeypatch.setattr(capture, "_MOST_PASSES", 6)
    loop = Loop(tmp_path)
    for _ in range(3):
        loop.backward()
    assert loop.process is not None
    (watch,) = loop.process.watches
    assert (len(watch.capture.ledger), len(watch.capture.records)) == (1, 0)
    assert len(tiny.facts(tmp_path, "rows")) == 8
    loop.update()
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "learnt"]
    assert why[0] == "6 passes came without a step"


def test_a_step_is_over_when_the_outer_optimizers_is(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    outer, process = loop.optimizer, loop.process
    assert process is not None
    inner = torch.optim.AdamW(list(loop.model.parameters())[:2], lr=1e-2)
    process.made(inner)
    for step in range(2):
        loop.backward()
        process.before_step(outer)
        process.before_step(inner)
        inner.step()
        process.after_step(inner)
        assert len(tiny.facts(tmp_path, "drift")) == step
        process.after_step(outer)  # it has gathered what other ranks have made
        assert len(tiny.facts(tmp_path, "drift")) == step + 1
    assert [fact["step"] for fact in tiny.facts(tmp_path, "arrived")] == [0, 1]


def test_what_backward_left_of_each_layer_is_held_against_what_arrives(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for _ in range(3):
        loop.backward()
        for name, parameter in loop.model.named_parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5 if "norm" in name else 1.0)
        loop.update()
        loop.optimizer.zero_grad()
    for arrived in tiny.facts(tmp_path, "arrived"):
        for name, tensor in arrived["layers"].items():
            times = 0.5 if "norm" in name else 1.0
            assert tensor["arrived"] == pytest.approx([times * x for x in tensor["left"]])
    loop.backward()
    assert not any(p._post_accumulate_grad_hooks for p in loop.model.parameters())


def test_gradients_that_nobody_accumulates_are_not_among_those_left(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loss, _ = tiny.loss_of(loop.model, tiny.batch([9, 5]))
    torch.autograd.grad(loss, loop.model.model.norm.weight)  # as for a weight of several losses
    loop.run(1)
    (arrived,) = tiny.facts(tmp_path, "arrived")
    assert all(tensor["left"] == tensor["arrived"] for tensor in arrived["layers"].values())


@pytest.mark.parametrize("lr", [1e-3, None])
def test_settings_that_are_no_numbers_are_left_out(tmp_path: Path, lr: float | None) -> None:
    loop = Loop(tmp_path)
    (group,) = loop.optimizer.param_groups
    assert loop.process is not None
    for _ in range(2):
        loop.backward()
        loop.process.before_step(loop.optimizer)
        loop.optimizer.step()
        was = dict(group)
        group.update(eps=(1e-30, 1e-3), lr=lr, betas=None)  # as transformers' Adafactor has them
        loop.process.after_step(loop.optimizer)
        group.update(was)
        loop.optimizer.zero_grad()
    assert not tiny.facts(tmp_path, "error")
    (facts,) = [one["groups"] for one in tiny.facts(tmp_path, "stepped")[:1]]
    vectors = sum(p.dim() == 1 for p in loop.model.parameters())
    assert facts[0].get("lr") == lr
    assert ("eps" in facts[0], "betas" in facts[0], facts[0]["vectors"]) == (False, False, vectors)
    assert len(tiny.facts(tmp_path, "drift")) == 2


def test_of_many_looks_a_few_are_kept(tmp_path: Path) -> None:
    loop = Loop(tmp_path, steps=12).run(12)
    assert loop.process is not None
    (watch,) = loop.process.watches
    assert list(watch._trail._before) == list(range(4, 12))


def test_a_step_that_is_undone_before_the_next_is_reported(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    before = [p.detach().clone() for p in loop.model.parameters()]
    for step in range(3):
        loop.backward()
        loop.update()
        loop.optimizer.zero_grad()
        if step == 1:
            with torch.no_grad():
                for p, was in zip(loop.model.parameters(), before, strict=True):
                    p.copy_(was)
    undone = [fact["undone"] for fact in tiny.facts(tmp_path, "arrived")]
    count = len(before)
    reported = [fact and (fact["to"], fact["tensors"], fact["written"]) for fact in undone]
    assert reported == [None, (None, count, None), (0, count, None)]


@pytest.mark.parametrize("share", [0.1, 0.75])
def test_the_part_of_a_step_that_is_left_is_reported(tmp_path: Path, share: float) -> None:
    loop = Loop(tmp_path)
    for _ in range(3):
        before = [p.detach().clone() for p in loop.model.parameters()]
        loop.backward()
        loop.update()
        loop.optimizer.zero_grad()
        with torch.no_grad():
            for p, was in zip(loop.model.parameters(), before, strict=True):
                p.copy_(was.lerp(p, share))
    _, *undone = [fact["undone"] for fact in tiny.facts(tmp_path, "arrived")]
    assert [one["written"]["share"] for one in undone] == pytest.approx([share] * 2, rel=1e-3)
    assert all(one["written"]["rest"] < 0.01 for one in undone)


def _clip(model: torch.nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def _divide(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad /= 2


def _replace(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad / 2


@pytest.mark.parametrize(
    ("writes", "changes"),
    [((), 0), ((_clip,), 1), ((_divide, _clip), 2), ((_replace, _clip), None)],
)
def test_how_often_gradients_are_written_behind_the_backward_pass_is_counted(
    tmp_path: Path, writes: tuple[Callable[[torch.nn.Module], None], ...], changes: int | None
) -> None:
    loop = Loop(tmp_path)
    for _ in range(2):
        loop.backward()
        for write in writes:
            write(loop.model)
        loop.update()
        loop.optimizer.zero_grad()
    assert [one["changes"] for one in tiny.facts(tmp_path, "arrived")] == [changes] * 2


def test_a_frozen_backbone_is_said(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.model.model.requires_grad_(False)
    loop.run(1)
    assert tiny.facts(tmp_path, "micro") == []
    why = [one["why"] for one in tiny.facts(tmp_path, "skipped") if one["what"] == "learnt"]
    assert why[0] == "no gradient comes back to the last hidden state: the backbone is frozen"
