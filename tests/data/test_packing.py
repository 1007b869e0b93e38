"""Rows are packed into forward passes by their tokens:

each once, none over the budget, ranks alike.
"""

import numpy as np
import pytest

from vtool.data.packing import pack


def lognormal(count: int, seed: int) -> list[int]:
    return (
        np.clip(np.random.RandomState(seed).lognormal(4.0, 0.9, count), 2, 500).astype(int).tolist()
    )


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_row_is_in_one_micro_batch_and_none_is_over_the_budget(world: int, seed: int) -> None:
    lengths = lognormal(64, seed)
    rows = [7 * number for number in range(64)]
    tokens = dict(zip(rows, lengths, strict=True))
    ranks = [pack(rows, lengths, rank, world, 512) for rank in range(world)]
    assert sorted(row for mine in ranks for group in mine for row in group) == rows
    assert all(sum(tokens[row] for row in group) <= 512 for mine in ranks for group in mine)
    loads = [sum(tokens[row] for group in mine for row in group) for mine in ranks]
    assert max(loads) - min(loads) <= max(lengths)
    for mine in ranks:  # first fit: two that are half empty would have been one
        assert sum(sum(tokens[row] for row in group) <= 256 for group in mine) <= 1


def test_the_order_in_which_rows_come_changes_nothing() -> None:
    rows, lengths = list(range(20)), lognormal(20, 3)
    turned = pack(rows[::-1], lengths[::-1], 1, 2, 600)
    assert turned == pack(rows, lengths, 1, 2, 600)


def test_a_rank_without_rows_has_no_micro_batch() -> None:
    assert [pack([4, 9], [3, 5], rank, 3, 10) for rank in range(3)] == [[(9,)], [(4,)], []]
