"""Spikes of the loss: those that are planted are found, and none in what healthy runs look like."""

import math

import numpy as np
import pytest

from vtool.spikes import FEWEST, RECENT, WINDOW, Spike, find_spikes


def noisy(count: int, level: float = 2.0, spread: float = 0.05, seed: int = 0) -> list[float]:
    random = np.random.RandomState(seed)
    losses: list[float] = (level * np.exp(spread * random.normal(size=count))).tolist()
    return losses


def found(losses: list[float]) -> list[Spike]:
    return find_spikes(enumerate(losses, 1))


def test_noise_has_no_spike() -> None:
    assert found(noisy(20_000)) == []


def test_a_loss_that_falls_has_no_spike() -> None:
    falling = [6 * math.exp(-step / 30) for step in range(600)]
    noise = noisy(600, level=1.0, spread=0.2)
    assert found([loss * factor for loss, factor in zip(falling, noise, strict=True)]) == []


def test_a_spike_soon_after_a_steep_fall_is_found() -> None:
    falling = [6 * math.exp(-step / 8) + 0.7 for step in range(60)]
    losses = [a * b for a, b in zip(falling, noisy(60, level=1.0, spread=0.1), strict=True)]
    assert found(losses) == []
    losses[46] = 12.0
    assert [spike.step for spike in found(losses)] == [47]


def test_batches_with_heavy_tails_have_none_once_their_tails_are_known() -> None:
    """Now and then a batch of twelve times the loss, as of a row that is not learnt."""
    losses = noisy(400, level=0.5)
    for step in range(10, 400, 17):
        losses[step] *= 12
    assert [spike.step for spike in found(losses) if spike.step > WINDOW] == []


def test_ten_times_the_highest_is_one_however_much_losses_differ() -> None:
    losses = noisy(400, level=0.02, spread=0.8)
    assert found(losses) == []
    losses[300] = 20 * max(losses[300 - WINDOW : 300])
    assert [spike.step for spike in found(losses)] == [301]


def test_almost_nothing_times_a_hundred_is_no_spike() -> None:
    losses = [1e-5] * 100
    losses[60] = 1e-3
    assert found(losses) == []


@pytest.mark.parametrize("at", [FEWEST, WINDOW, 150])
def test_a_planted_spike_is_found_with_its_steps(at: int) -> None:
    losses = noisy(200)
    losses[at], losses[at + 1], losses[at + 2] = 6.0, 9.0, 5.0
    (spike,) = found(losses)
    assert (spike.step, spike.loss, spike.first, spike.last) == (at + 2, 9.0, at + 1, at + 3)
    before = losses[at - RECENT : at]
    assert spike.usual == pytest.approx(float(np.median(before)), rel=1e-3)


def test_two_spikes_hide_neither_each_other_nor_what_follows() -> None:
    losses = noisy(200)
    losses[100] = losses[110] = 40.0
    losses[150] = 8.0
    assert [spike.step for spike in found(losses)] == [101, 111, 151]


def test_a_new_level_is_one_spike_and_usual_then() -> None:
    (spike,) = found([*noisy(100), *noisy(200, level=8.0, seed=1)])
    assert (spike.first, spike.last) == (101, 108)


def test_losses_that_are_no_numbers_are_passed_over_and_few_say_nothing() -> None:
    losses = noisy(100)
    losses[50], losses[51], losses[60] = math.nan, math.inf, 30.0
    assert [spike.step for spike in found(losses)] == [61]
    assert found([1.0] * (FEWEST - 1) + [100.0]) == []
