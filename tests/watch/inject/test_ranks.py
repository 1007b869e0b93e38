"""Ranks decide alike whether a collective is entered, whoever is missing, failing, or late."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from vtool.watch.inject.vtool_watch.ranks import Agreement


def vote(votes: dict[int, tuple[float, bool]], world: int, wait: float) -> list[tuple[bool, bool]]:
    """Return each voter's decision, and whether it continues to vote; `votes`: seconds, ready."""
    store = dist.HashStore()

    def one(rank: int) -> tuple[bool, bool]:
        side = Agreement(store, rank, wait)
        delay, ready = votes[rank]
        time.sleep(delay)
        decided = side.decide("head/0", range(world), ready)
        return decided, side.over is None

    with ThreadPoolExecutor(len(votes)) as pool:
        return list(pool.map(one, votes))


def test_all_that_are_ready_enter() -> None:
    assert vote({0: (0, True), 1: (0.05, True), 2: (0, True)}, 3, 20) == [(True, True)] * 3


def test_none_enters_where_one_is_not_ready() -> None:
    assert vote({0: (0, True), 1: (0, False), 2: (0, True)}, 3, 20) == [(False, True)] * 3


def test_none_enters_where_one_is_missing_and_none_asks_again() -> None:
    assert vote({0: (0, True), 2: (0, True)}, 3, 0.1) == [(False, False)] * 2


def test_a_rank_that_comes_too_late_holds_to_the_decision() -> None:
    assert vote({0: (0, True), 1: (0.5, True)}, 2, 0.1) == [(False, False)] * 2


@pytest.mark.parametrize("seed", range(5))
def test_no_two_ranks_decide_apart_at_the_limit(seed: int) -> None:
    draw = random.Random(seed)
    votes = {rank: (draw.choice([0.0, 0.09, 0.1, 0.11]), True) for rank in range(4)}
    assert len(set(vote(votes, 4, 0.1))) == 1


def test_a_store_that_fails_is_a_no() -> None:
    side = Agreement(None, 0, 1)
    assert side.decide("head/0", [0, 1], True) is False
    assert side.over
    assert side.over.startswith("the ranks' store cannot be used")
