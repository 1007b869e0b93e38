import math
from typing import get_args

import pytest
import torch

from vtool.config.schema import Optim
from vtool.config.shipped import shipped_folder
from vtool.training.optimizer import OPTIMIZERS, build_optimizer, parameter_groups
from vtool.training.schedule import SCHEDULES, learning_rate, observe_schedule
from vtool.verification.proof_settings import RATES


def test_the_warm_up_is_a_line_to_the_highest_rate() -> None:
    settings = Optim(lr=1e-3, warmup_steps=4)
    assert [learning_rate(settings, step, 100) for step in (1, 2, 3, 4, 5)] == pytest.approx(
        [2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3]
    )


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rate_falls_and_the_last_step_still_trains(schedule: str) -> None:
    settings = Optim.model_validate({"lr": 1e-3, "warmup_steps": 5, "schedule": schedule})
    rates = [learning_rate(settings, step, 50) for step in range(6, 51)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.05e-3


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rates_are_those_of_transformers(schedule: str) -> None:
    from transformers import get_scheduler

    settings = Optim.model_validate({"lr": 2e-3, "warmup_steps": 7, "schedule": schedule})
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2e-3)
    theirs = get_scheduler(schedule, optimizer, 7, 60)
    for step in range(8, 61):
        # transformers counts from 0, and so begins a warm-up at a rate of 0
        while theirs.last_epoch < step - 1:
            optimizer.step()
            theirs.step()
        assert math.isclose(
            learning_rate(settings, step, 60), theirs.get_last_lr()[0], rel_tol=1e-12
        )


def test_constant_stays() -> None:
    assert {
        learning_rate(Optim(lr=1e-3, schedule="constant", min_lr_ratio=0.1), step, 9)
        for step in range(1, 10)
    } == {1e-3}


def test_wsd_stays_and_then_falls_in_the_last_tenth_as_transformers_does() -> None:
    from transformers import get_scheduler

    settings = Optim(lr=2e-3, warmup_steps=10, schedule="wsd", min_lr_ratio=0.1)
    rates = [learning_rate(settings, step, 110) for step in range(11, 112)]
    assert rates[:91] == [2e-3] * 91
    assert rates[100] == pytest.approx(2e-4)  # in step 111 all steps are done
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2e-3)
    theirs = get_scheduler(
        "warmup_stable_decay",
        optimizer,
        10,
        110,
        {
            **{"num_decay_steps": 10, "num_stable_steps": 90, "min_lr_ratio": 0.1},
            "decay_type": "linear",
        },
    )
    for step in range(11, 111):
        while theirs.last_epoch < step - 1:
            optimizer.step()
            theirs.step()
        rate = theirs.get_last_lr()[0]
        assert math.isclose(learning_rate(settings, step, 110), rate, rel_tol=1e-12), step


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rate_falls_to_the_share_that_is_asked_and_not_below(schedule: str) -> None:
    settings = {"lr": 1e-3, "warmup_steps": 5, "schedule": schedule}
    whole = Optim.model_validate(settings)
    lifted = Optim.model_validate(settings | {"min_lr_ratio": 0.2})
    for step in range(1, 52):  # in step 51 all steps are done
        rate = learning_rate(whole, step, 50)
        assert learning_rate(lifted, step, 50) == pytest.approx(
            rate if step <= 5 else 2e-4 + 0.8 * rate, rel=1e-12
        )
    assert learning_rate(lifted, 51, 50) == pytest.approx(2e-4, rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_the_lowest_rates_are_those_of_transformers(share: float) -> None:
    from transformers import get_scheduler

    settings = Optim(lr=2e-3, warmup_steps=7, min_lr_ratio=share)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2e-3)
    given = {"min_lr_rate": share}
    theirs = get_scheduler("cosine_with_min_lr", optimizer, 7, 60, given)
    for step in range(8, 61):
        while theirs.last_epoch < step - 1:
            optimizer.step()
            theirs.step()
        rate = theirs.get_last_lr()[0]
        assert math.isclose(learning_rate(settings, step, 60), rate, rel_tol=1e-12)


def test_every_schedule_and_optimizer_of_the_schema_has_its_function_and_no_other() -> None:
    for setting, functions in (("schedule", SCHEDULES), ("name", OPTIMIZERS)):
        assert set(get_args(Optim.model_fields[setting].annotation)) == functions.keys()
    assert RATES.keys() == OPTIMIZERS.keys(), "the rate at which the proofs see its steps"
    files = {file.stem for file in (shipped_folder("configs") / "optim").glob("*.yaml")}
    assert files == OPTIMIZERS.keys(), "each optimizer has a file of its usual settings"


def test_only_tensors_of_two_or_more_dimensions_decay() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1)
    )
    module[2].weight.requires_grad_(False)
    groups = parameter_groups(
        module.named_parameters(), Optim(lr=1.0, weight_decay=0.1), lambda _name: "language"
    )
    assert [
        (group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in groups
    ] == [
        (0.1, [(3, 3)]),
        (0.0, [(3,), (3,), (3,), (1,)]),
    ]


def test_a_step_is_adamw_by_the_book() -> None:
    """One step of AdamW in float64, by the paper's formulas."""
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3).double()
    settings = Optim(lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    optimizer = build_optimizer(module, settings, lambda _name: "language")
    module(torch.randn(5, 4).double()).square().sum().backward()
    optimizer.step()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        decay = 0.1 if parameter.dim() >= 2 else 0.0
        mean, square = 0.1 * parameter.grad / (1 - 0.9), 0.05 * parameter.grad**2 / (1 - 0.95)
        wanted = before[name] * (1 - 1e-2 * decay) - 1e-2 * mean / (square.sqrt() + 1e-6)
        assert torch.allclose(parameter, wanted, rtol=0, atol=1e-14)


FALLS_AT_ONCE = ("cosine", "linear")
"""Schedules whose shape is seen in three steps after the warm-up, and their floor in two.

One that resembles another of them is seen later, and so is that other one: say here from when on.
"""


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.1, 1 / 3, 0.95])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_schedule_was_made_with_is_read_off_its_rates(schedule: str, share: float) -> None:
    for total in range(1, 30):
        for warmup in range(total):
            given = {"lr": 3e-4, "warmup_steps": warmup, "schedule": schedule}
            settings = Optim.model_validate(given | {"min_lr_ratio": share})
            rates = lambda step, of=settings, n=total: learning_rate(of, step, n)  # noqa: E731
            observed = {one.name: one.value for one in observe_schedule(rates, total)}
            assert observed["optim.lr"] == 3e-4
            # One step of warm-up changes nothing of a constant rate; over a step or two, shapes are
            # one. Two steps of one rate are a constant rate, or a warm-up of one step.
            if "optim.warmup_steps" in observed and not (warmup == 1 and settings.is_flat(total)):
                assert observed["optim.warmup_steps"] == warmup, total
            assert observed.get("optim.schedule", schedule) == schedule, (total, warmup)
            left, falls = total - warmup, schedule in FALLS_AT_ONCE
            # over ten steps, a tenth in which one falls is no step
            of_both = left if warmup > 1 else total - 1
            fewest = (left >= 3) if falls else (left if schedule == "wsd" else of_both) > 10
            assert ("optim.schedule" in observed) is fewest, (total, warmup, "see FALLS_AT_ONCE")
            floor = left >= (2 if falls else 11) if schedule != "constant" else False
            # one step of a fall may be any floor's, after a warm-up of one step or of none
            if falls or warmup > 1 or left > 21:
                assert ("optim.min_lr_ratio" in observed) is floor, (
                    *(total, warmup),
                    "see FALLS_AT_ONCE",
                )
            assert observed.get("optim.min_lr_ratio", share) == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_a_schedule_that_is_added_is_read_off_its_rates_too(
    warmup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flat and then falling: over the first third it is the constant one."""
    monkeypatch.setitem(SCHEDULES, "flat", lambda done: min(1.0, 5 * (1 - done)))
    settings = Optim(lr=3e-4, warmup_steps=warmup).model_copy(update={"schedule": "flat"})
    for total in (30, 100, 5000):
        rates = observe_schedule(lambda step, n=total: learning_rate(settings, step, n), total)  # type: ignore[misc]
        assert {one.name: one.value for one in rates} == {
            "optim.lr": 3e-4,
            "optim.warmup_steps": warmup,
            "optim.schedule": "flat",
            "optim.min_lr_ratio": 0.0,
        }


def test_a_schedule_of_no_known_shape_is_none() -> None:
    observed = {one.name: one.value for one in observe_schedule(lambda step: 1e-3 / step, 10)}
    assert observed["optim.schedule"] == "a rate of 0.00025 in step 4"
    assert "optim.min_lr_ratio" not in observed


def test_a_warm_up_that_is_no_line_is_a_longer_one() -> None:
    observed = {one.name: one.value for one in observe_schedule(lambda step: 1e-6 * step**3, 10)}
    assert observed["optim.warmup_steps"] == 1000
    assert observed["optim.schedule"] == "a rate of 0.001 in step 10"
