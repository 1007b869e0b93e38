"""Rows that a sampler draws unevenly on purpose are no mistake."""

from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules


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
