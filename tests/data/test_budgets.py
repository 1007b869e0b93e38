"""Token budgets: the fill that is reported is the one that a run has."""

import numpy as np
import pytest

from vtool.data.budgets import MOST_ROWS, cheapest, fills, nearby_budgets, steps_to_pack
from vtool.data.loader import packed_micro_batches
from vtool.data.plan import Plan

LENGTHS = [6, 5, 4, 3, 2, 2]


@pytest.mark.parametrize(("world", "passes"), [(1, 3), (2, 2)])
def test_the_fill_of_a_step_that_is_packed_by_hand(world: int, passes: int) -> None:
    # one rank: 6 2 · 5 3 · 4 2; two ranks: 6 2 · 3 and 5 2 · 4
    (found,) = fills(Plan(6, 6, seed=0), LENGTHS, world, [8])
    assert (found.passes, found.tokens) == (passes, 22)
    assert found.fill == pytest.approx(22 / (8 * passes * world))


@pytest.mark.parametrize("world", [1, 3])
def test_as_many_passes_as_a_run_makes(world: int) -> None:
    lengths = np.random.RandomState(world).lognormal(4, 0.8, 500).astype(int).clip(2, 900).tolist()
    plan = Plan(len(lengths), 64, seed=3)
    for found in fills(plan, lengths, world, [900, 1300, 2000]):
        passes = tokens = 0
        for step in range(1, plan.steps_per_epoch + 1):
            made = [
                packed_micro_batches(plan, range(500), lengths, step, rank, world, found.budget)
                for rank in range(world)
            ]
            passes += max(map(len, made))
            own = [batch.rows for batches in made for batch in batches if batch.counts]
            tokens += sum(lengths[row] for rows in own for row in rows)
        assert (found.passes, found.tokens) == (passes, tokens)
        assert found.tokens == sum(lengths)


def test_the_cheapest_leaves_the_fewest_places_empty() -> None:
    found = list(fills(Plan(6, 6, seed=0), LENGTHS, 1, [8, 11, 12, 22, 24]))
    assert [one.places for one in found] == [24, 22, 24, 22, 24]
    assert cheapest(found).budget == 11
    assert cheapest(found).fill == max(one.fill for one in found)


def test_budgets_are_around_the_one_that_is_asked_for_and_have_room_for_every_row() -> None:
    assert nearby_budgets([10, 700], 1024) == list(range(768, 2049, 128))
    assert nearby_budgets([5000], 1024) == []


def test_only_so_many_rows_are_packed() -> None:
    assert steps_to_pack(Plan(10**6, 256, seed=0)) == 64
    assert steps_to_pack(Plan(10**6, 5000, seed=0)) == 4
    assert steps_to_pack(Plan(100, 32, seed=0)) == 4
    assert steps_to_pack(Plan(10**6, MOST_ROWS + 1, seed=0)) == 0
    assert list(fills(Plan(10**6, MOST_ROWS + 1, seed=0), [3] * 10**6, 1, [8])) == []
