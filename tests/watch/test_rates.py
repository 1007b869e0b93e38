"""A rate that a schedule has not yet raised, or has lowered, is no mistake."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules


def with_rates(
    rates: Sequence[float], first: float | None = None, **reference: object
) -> list[Fact]:
    """Return facts of steps with some rates, in which the last norm does not move."""

    def change(fact: Fact) -> None:
        if fact["kind"] == "stepped":
            fact["groups"] = [{"lr": rates[fact["step"]], "tensors": 9}]
            if first is not None:
                fact["groups"][0]["initial_lr"] = first
            fact["reference"] = {"norm.weight": {"off": 1.0, "moved": 0.0, **reference}}
        if fact["kind"] == "drift" and fact["step"] > 0:
            fact.update(stuck=["norm.weight"], n_stuck=1)

    return changed(healthy(steps=len(rates)), change)


@pytest.mark.parametrize(
    ("rates", "first"),
    [
        ((0.0, 3e-8, 6e-8), 1e-5),
        ((3e-8, 6e-8, 9e-8), None),
        ((1e-5, 4e-7, 1e-9), 1e-5),
        ((1e-5, 4e-7, 1e-9), None),
    ],
    ids=["warm-up", "a warm-up by hand", "a cosine's end", "a cosine's end, by hand"],
)
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_a_rate_on_its_way_is_no_finding(
    tmp_path: Path, rates: tuple[float, ...], first: float | None, dtype: str
) -> None:
    result = conclude(tmp_path, with_rates(rates, first, dtype=dtype))
    if rates[0] < 1e-5 or dtype == "torch.float32":
        assert rules(result) == {}
    else:  # the first step has its whole rate, and loses it
        assert rules(result) == {"updates-lost-in-rounding": "warning"}


def test_updates_that_16_bits_lose_at_the_whole_rate_are_found(tmp_path: Path) -> None:
    result = conclude(tmp_path, with_rates((1e-5,) * 3, 1e-5, dtype="torch.bfloat16"))
    assert rules(result) == {"updates-lost-in-rounding": "warning"}


@pytest.mark.parametrize("rates", [(1e-5,) * 3, (1e-5, 1e-5, 1e-30)])
def test_weights_that_stand_still_at_the_whole_rate_are_found(
    tmp_path: Path, rates: tuple[float, ...]
) -> None:
    result = conclude(tmp_path, with_rates(rates, dtype="torch.float32"))
    assert rules(result) == {"parameter-stopped-moving": "warning"}
