import tracemalloc
from collections import Counter
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from vtool.data.plan import Plan, SourceShare, rank_micro_batches, weighted


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
        for micro_batch in rank_micro_batches(rows, rank, world, 3)
        for row in micro_batch
    ]
    assert Counter(shares) == Counter(int(row) for row in rows)


def test_micro_batches_are_no_larger_than_asked() -> None:
    assert [len(part) for part in rank_micro_batches(np.arange(10), 0, 1, 4)] == [4, 4, 2]
    assert rank_micro_batches(np.arange(1), 1, 2, 4) == []


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 11])
def test_samples_counts_what_the_steps_hold(steps: int) -> None:
    plan = Plan(rows=103, global_batch_size=32, seed=0)
    assert plan.samples(steps) == sum(len(plan.step(step)) for step in range(1, steps + 1))


@pytest.mark.parametrize(("rows", "size", "seed"), [(103, 32, 0), (1258, 64, 7), (5, 8, 3)])
def test_an_order_without_a_mixture_is_numpys_permutation_of_seed_and_epoch(
    rows: int, size: int, seed: int
) -> None:
    plan = Plan(rows, size, seed)
    for epoch in range(3):
        steps = [plan.step(1 + epoch * plan.steps_per_epoch + at) for at in range(-(-rows // size))]
        generator = np.random.MT19937(np.random.SeedSequence([seed, epoch]))
        expected = np.random.RandomState(generator).permutation(rows)
        assert np.concatenate(steps).tobytes() == expected.tobytes()


def digest(plan: Plan, steps: int) -> str:
    return sha256(
        b"".join(plan.step(step).astype("<i8").tobytes() for step in range(1, steps + 1))
    ).hexdigest()


def test_orders_are_those_of_the_releases_before() -> None:
    """A run resumes in the order that it began with: these bytes must never change."""
    assert digest(Plan(1258, 64, 7), 60) == (
        "050b476a9d8984f285aad36e4c96335ee286968d7f31aa85d9302a60f2583ca0"
    )
    assert digest(MIXED, 40) == "01d4ebaf8e3ff202ef7278a0b1f392ad9bd75d544a848ac6d9f6ea19af4250a4"


MIXED = Plan(130, 16, 7, (SourceShare(100, 60), SourceShare(30, 75)))


def counted(plan: Plan, steps: int) -> np.ndarray:
    rows = [plan.step(step) for step in range(1, steps + 1)]
    return np.bincount(np.concatenate(rows), minlength=plan.rows)


def test_an_epoch_of_a_mixture_has_as_many_samples_of_each_source_as_it_says() -> None:
    assert MIXED.steps_per_epoch == 9
    for epoch in range(4):
        steps = [MIXED.step(1 + epoch * 9 + place) for place in range(9)]
        assert [len(step) for step in steps] == [16] * 8 + [7]
        rows = np.concatenate(steps)
        assert (int((rows < 100).sum()), int((rows >= 100).sum())) == (60, 75)


def test_rows_of_a_mixture_that_wait_come_before_any_is_repeated() -> None:
    for epochs in range(1, 8):
        counts = counted(MIXED, 9 * epochs)
        for first, part in ((0, MIXED.parts[0]), (100, MIXED.parts[1])):
            own = counts[first : first + part.rows]
            assert own.sum() == epochs * part.samples
            assert own.max() - own.min() <= 1


@pytest.mark.parametrize("steps", [0, 1, 5, 9, 10, 18, 31])
def test_how_often_a_row_comes_is_known_without_the_order_and_counted_with_it(steps: int) -> None:
    for plan in (MIXED, Plan(130, 16, 7)):
        counts = counted(plan, steps) if steps else np.zeros(130, np.int64)
        fewest, most = plan.fewest_and_most(steps)
        assert (fewest <= counts).all()
        assert (counts <= most).all()
        assert plan.visits(steps).tolist() == counts.tolist()
        assert plan.samples(steps) == counts.sum()


def test_a_mixture_of_any_size_keeps_no_order_in_memory() -> None:
    plan = Plan(10**9, 64, 0, (SourceShare(4 * 10**8, 10**9), SourceShare(6 * 10**8, 10**7)))
    plan.step(1)  # numpy imports numpy.random here, which is not the plan's memory
    tracemalloc.start()
    try:
        for step in (1, 2, 10**6, plan.steps_per_epoch, plan.steps_per_epoch + 1):
            rows = plan.step(step)
            assert ((rows >= 0) & (rows < 10**9)).all()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_a_mixture_is_shuffled_and_not_source_after_source() -> None:
    steps = [MIXED.step(step) for step in range(1, 9)]
    shares = [float((step < 100).mean()) for step in steps]
    assert all(0.1 < share < 0.9 for share in shares)
    assert tuple(MIXED.step(1)) != tuple(MIXED.step(10))
    assert tuple(MIXED.step(1)) != tuple(replace(MIXED, seed=8).step(1))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_rows_of_a_step_of_a_mixture_do_not_depend_on_the_rank_count(world: int) -> None:
    rows = MIXED.step(12)
    shares = [
        row
        for rank in range(world)
        for part in rank_micro_batches(rows, rank, world, 3)
        for row in part
    ]
    assert Counter(shares) == Counter(rows.tolist())


@pytest.mark.parametrize(
    ("rows", "weights", "samples"),
    [
        ([1000, 5000], [3, 1], [1000, 333]),
        ([1000, 5000], [1, 1], [1000, 1000]),
        ([10, 10, 10], [0.1, 0.1, 0.1], [10, 10, 10]),
        ([7, 100, 100], [0.7, 0.2, 0.1], [7, 2, 1]),
        ([100, 3, 100], [1, 1, 1], [3, 3, 3]),
        ([1, 1000], [1, 1e-6], [1, 0]),
        ([5, 9, 9], [2, 1, 1], [5, 3, 2]),
    ],
)
def test_weights_are_exact_and_no_row_is_repeated(
    rows: list[int], weights: list[float], samples: list[int]
) -> None:
    assert weighted(rows, weights) == samples


def test_weights_are_kept_to_less_than_one_sample_for_any_numbers() -> None:
    random = np.random.RandomState(0)
    for _ in range(200):
        rows = random.randint(1, 1000, 4).tolist()
        weights = [round(float(weight), 3) for weight in random.uniform(0.01, 5, 4)]
        samples = weighted(rows, weights)
        assert all(count <= have for count, have in zip(samples, rows, strict=True))
        size = min(have * sum(weights) / weight for have, weight in zip(rows, weights, strict=True))
        for count, weight in zip(samples, weights, strict=True):
            assert abs(count - size * weight / sum(weights)) < 1
        assert any(count == have for count, have in zip(samples, rows, strict=True))


def test_many_rows_have_every_row_once_without_an_array_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vtool.data.plan.MOST_SHUFFLED", 100)
    monkeypatch.setattr("vtool.data.plan._permutation", None)  # not to be made
    plan = Plan(rows=1_003, global_batch_size=32, seed=0)
    assert plan.order == "Feistel network of 8 rounds"
    orders = [
        np.concatenate([plan.step(1 + epoch * 32 + place) for place in range(32)])
        for epoch in range(3)
    ]
    for order in orders:
        assert sorted(order.tolist()) == list(range(1_003))
    together = abs(np.corrcoef(np.stack([*orders, np.arange(1_003)]))[np.triu_indices(4, 1)])
    assert together.max() < 4 / np.sqrt(1_003)  # four standard deviations of no correlation
    assert plan.visits(5).sum() == plan.samples(5) == 160


@pytest.mark.full
def test_up_to_sixteen_million_rows_the_order_is_as_it_was() -> None:
    plan = Plan(rows=2**24, global_batch_size=8, seed=3)
    assert plan.order == "RandomState.permutation"
    wanted = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([3, 0]))).permutation(
        2**24
    )
    assert plan.step(2).tolist() == wanted[8:16].tolist()
    more = Plan(rows=2**24 + 1, global_batch_size=8, seed=3)
    assert more.order == "Feistel network of 8 rounds"
    steps = np.concatenate([more.step(step) for step in range(1, 1001)])
    assert len(np.unique(steps)) == 8_000
    assert 0 <= steps.min() < 2**20 < 15 * 2**20 < steps.max() <= 2**24
