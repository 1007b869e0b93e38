"""Rows that a sampler draws unevenly on purpose are no mistake."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.watch.made import LENGTHS, Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules
from vtool.watch.inject.vtool_watch.alive import loaders


@pytest.mark.parametrize(
    ("sampler", "severity"), [("WeightedRandomSampler", "note"), ("RandomSampler", "warning")]
)
def test_rows_drawn_unevenly(tmp_path: Path, sampler: str, severity: str) -> None:
    def draw(fact: Fact) -> None:
        if fact["kind"] == "rows":
            fact["rows"] = ["one", "two" if fact["step"] or fact["micro"] else "one"]
            for loader in fact["data"] or ():
                loader |= {"sampler": sampler, "rows": 6}

    assert rules(conclude(tmp_path, changed(healthy(), draw))) == {"rows-seen-unevenly": severity}


@pytest.mark.parametrize(
    ("world", "steps", "data", "drop_last", "found"),
    [
        (1, 3, 6, False, True),
        (1, 3, 6, True, False),  # the last batch of an epoch may be left out, each time another
        (2, 3, 12, False, True),
        (2, 3, 6, False, False),  # 4 rows at a time: an epoch is filled up
        (1, 4, 6, False, False),  # the third epoch has only begun
    ],
)
def test_a_row_that_takes_the_place_of_another(
    tmp_path: Path, world: int, steps: int, data: int, drop_last: bool, found: bool
) -> None:
    numbers = iter(range(1000))

    def show(fact: Fact) -> None:
        if fact["kind"] == "rows":
            shown = [next(numbers) for _ in fact["rows"]]
            fact["rows"] = [f"{0 if number == 5 else number % data}" for number in shown]
            for loader in fact["data"] or ():
                loader |= {"rows": data, "drop_last": drop_last}

    result = conclude(tmp_path, changed(healthy(world, steps), show))
    assert rules(result) == ({"rows-seen-unevenly": "warning"} if found else {})


@pytest.mark.parametrize(
    ("seeds", "size", "shuffled", "state"),
    [
        ((0, 0, 0), 8, True, "failed"),
        ((0, 0, 0), 8, False, "not-run"),  # one order is asked for
        ((0, 1, 2), 8, True, "passed"),
        ((0, 0, 1), 8, True, "passed"),
        ((0, 0, 0, 0), 6, True, "not-run"),  # so few may have one order by chance
        ((0,), 24, True, "not-run"),
    ],
)
@pytest.mark.parametrize("world", [1, 2])
def test_epochs_of_shuffled_rows_in_one_order(
    tmp_path: Path, seeds: tuple[int, ...], size: int, shuffled: bool, state: str, world: int
) -> None:
    order = [row for seed in seeds for row in random.Random(seed).sample(range(size), size)]
    shown = {rank: iter(order) for rank in range(world)}
    steps = size * len(seeds) // (2 * len(LENGTHS))

    def show(fact: Fact) -> None:
        if fact["kind"] == "rows":
            fact["rows"] = [f"{fact['rank']} {next(shown[fact['rank']])}" for _ in fact["rows"]]
            for loader in fact["data"] or ():
                loader |= {"rows": size * world, "shuffled": shuffled}

    result = conclude(tmp_path, changed(healthy(world, steps), show))
    assert result.checks["epochs-in-one-order"] == state
    assert rules(result) == ({"epochs-in-one-order": "warning"} if state == "failed" else {})


class ByEpoch(torch.utils.data.Sampler[int]):
    """An order of one's own, which the epoch decides."""

    def __iter__(self) -> Any:
        return iter(range(7))

    def set_epoch(self, epoch: int) -> None:
        """Take the epoch."""


class Shard(torch.utils.data.BatchSampler):
    """Batches of one rank, of a sampler of batches: as accelerate has them."""

    def __init__(self, inner: torch.utils.data.BatchSampler) -> None:
        self.batch_sampler, self.drop_last, self.batch_size = inner, False, 2


@pytest.mark.parametrize(
    ("given", "shuffled"),
    [
        ({"shuffle": True}, True),
        ({}, False),
        ({"sampler": RandomSampler(range(7))}, True),
        ({"sampler": SubsetRandomSampler([1, 2])}, True),
        ({"sampler": WeightedRandomSampler([1.0] * 7, 7)}, False),
        ({"sampler": DistributedSampler(range(7), 2, 0)}, True),
        ({"sampler": DistributedSampler(range(7), 2, 0, shuffle=False)}, False),
        ({"sampler": ByEpoch()}, True),
        ({"batch_sampler": Shard(DataLoader(range(7), shuffle=True).batch_sampler)}, True),
        ({"batch_sampler": Shard(DataLoader(range(7)).batch_sampler)}, False),
    ],
)
def test_whether_a_loader_shuffles(given: dict[str, Any], shuffled: bool) -> None:
    rows = list(range(1_000_007, 1_000_014))
    loader = DataLoader(rows, **given)
    found = [one for one in loaders() if one["rows"] == len(rows)]
    assert shuffled in [one["shuffled"] for one in found], (loader, found)
