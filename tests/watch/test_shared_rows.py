"""Shares of ranks that overlap are found; epochs, padding and copies in the data are none."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch.utils.data import DistributedSampler

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules
from vtool.diagnostics.result import Result
from vtool.watch.inject.vtool_watch.alive import loaders

STEPS, WORLD = 12, 2
ROWS = STEPS * 4
"""Rows that a rank is shown, of two micro-batches of two a step."""


def shown(
    folder: Path,
    orders: Sequence[Sequence[int]],
    text: Callable[[int], int] = int,
    data: int | None = None,
    copies: int | None = None,
) -> Result:
    """Conclude from rows that each rank was shown; `text`: what the row of a number has."""

    def change(fact: Fact) -> None:
        if fact["kind"] == "rows":
            at = fact["step"] * 4 + fact["micro"] * 2
            fact["rows"] = [f"{text(row)}" for row in orders[fact["rank"]][at : at + 2]]
            for loader in fact["data"] or ():
                loader |= {"rows": data, "copies": copies}

    return conclude(folder, changed(healthy(len(orders), STEPS), change))


def sampled(rows: int, world: int, epochs: int) -> list[list[int]]:
    """Return the order of each rank, by torch's own sampler."""
    orders: list[list[int]] = [[] for _ in range(world)]
    for rank in range(world):
        sampler = DistributedSampler(range(rows), world, rank)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            orders[rank] += sampler
    return orders


@pytest.mark.parametrize("data", [None, 72])
def test_shares_that_overlap_are_found(tmp_path: Path, data: int | None) -> None:
    result = shown(tmp_path, [range(ROWS), range(24, 24 + ROWS)], data=data)
    assert rules(result)["ranks-see-same-rows"] == "warning"
    assert "of each of 2 ranks" in result.findings[-1].message


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("rows", [48, 45, 190])
def test_epochs_of_a_sampler_that_fills_up_are_none(tmp_path: Path, world: int, rows: int) -> None:
    orders = sampled(rows, world, 8)
    for data in (None, rows):
        result = shown(tmp_path / str(data), orders, data=data)
        assert result.checks["ranks-see-same-rows"] == "passed"


@pytest.mark.parametrize("drawn", [True, False])
def test_texts_that_are_in_the_data_several_times_are_none(tmp_path: Path, drawn: bool) -> None:
    rows = [number // 2 for number in range(2 * ROWS)]
    if drawn:
        random.Random(2).shuffle(rows)
    orders = [rows[0::2], [*rows[1::2][1:], 999]]
    result = shown(tmp_path, orders)
    assert result.checks["ranks-see-same-rows"] == "passed"


def test_copies_in_the_data_are_counted_where_it_is_small() -> None:
    from torch.utils.data import DataLoader

    rows = [{"input_ids": [1, number % 6]} for number in range(9)]
    kept = DataLoader(rows, 2)  # type: ignore[arg-type]
    assert [one["copies"] for one in loaders() if one["rows"] == len(rows)] == [3]
    del kept
