from collections import Counter

import numpy as np
import pytest

from vtool.data.plan import Plan, share


def test_an_epoch_has_every_row_once_and_no_step_crosses_it() -> None:
    plan = Plan(rows=103, global_batch_size=32, seed=0)
    assert plan.steps_per_epoch == 4
    for epoch in range(3):
        steps = [plan.step(1 + epoch * 4 + place) for place in range(4)]
        assert [len(step) for step in steps] == [32, 32, 32, 7]
        assert sorted(np.concatenate(steps)) == list(range(103))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    plan = Plan(rows=64, global_batch_size=64, seed=0)
    orders = [tuple(plan.step(1)), tuple(plan.step(2)), tuple(Plan(64, 64, seed=1).step(1))]
    assert len(set(orders)) == 3
    assert tuple(Plan(64, 64, seed=0).step(2)) == orders[1]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_rows_of_a_step_do_not_depend_on_the_rank_count(world: int) -> None:
    rows = Plan(rows=50, global_batch_size=16, seed=3).step(2)
    shares = [
        row
        for rank in range(world)
        for micro_batch in share(rows, rank, world, 3)
        for row in micro_batch
    ]
    assert Counter(shares) == Counter(int(row) for row in rows)


def test_micro_batches_are_no_larger_than_asked() -> None:
    assert [len(part) for part in share(np.arange(10), 0, 1, 4)] == [4, 4, 2]
    assert share(np.arange(1), 1, 2, 4) == []


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 11])
def test_samples_counts_what_the_steps_hold(steps: int) -> None:
    plan = Plan(rows=103, global_batch_size=32, seed=0)
    assert plan.samples(steps) == sum(len(plan.step(step)) for step in range(1, steps + 1))
