"""Permutations that are computed value by value: they have every value once, and look random."""

import numpy as np
import pytest

from vtool.data.permutation import mix, permute

_U64 = 2**64


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 1025, 65537])
def test_every_value_is_there_once_whichever_part_is_asked_for(size: int) -> None:
    whole = permute(np.arange(size), size, (3, size))
    assert sorted(whole.tolist()) == list(range(size))
    some = np.random.RandomState(0).permutation(size)[:7]
    np.testing.assert_array_equal(permute(some, size, (3, size)), whole[some])


@pytest.mark.full
def test_keys_have_orders_of_their_own_in_which_every_place_is_as_likely() -> None:
    size, keys = 5, 6000
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), permute(np.arange(size), size, (0, key, 1))] += 1
    expected = keys / size
    squares = ((counts - expected) ** 2 / expected).sum()
    # χ² of 16 degrees of freedom: above 39.3 once in a thousand
    assert squares < 39.3


def test_neighbours_are_not_neighbours_any_more() -> None:
    order = permute(np.arange(10_000), 10_000, (0, 1))
    correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
    assert abs(correlation) < 0.04
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.04


def test_the_formula_has_not_changed_so_that_a_run_resumes_in_its_order() -> None:
    assert permute(np.arange(10), 10, (1, 2, 3)).tolist() == [7, 1, 3, 0, 4, 2, 6, 5, 8, 9]


def test_mix_is_splitmix64() -> None:
    """Against Python's own whole numbers, and the first outputs of the published generator."""

    def independent(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) % _U64
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _U64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _U64
        return value ^ (value >> 31)

    values = [0, 1, 12345, _U64 - 1]
    assert mix(np.array(values, np.uint64)).tolist() == list(map(independent, values))
    assert int(mix(np.zeros(1, np.uint64))[0]) == 0xE220A8397B1DCDAF
