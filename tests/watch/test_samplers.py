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
