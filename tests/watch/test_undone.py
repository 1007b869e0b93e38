"""Steps that were undone before the next one."""

from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules


@pytest.mark.parametrize(
    ("steps", "found"), [({1: 0, 2: 0}, "warning"), ({1: 0, 2: 1}, "warning"), ({2: 1}, "note")]
)
def test_weights_that_are_put_back(tmp_path: Path, steps: dict[int, int], found: str) -> None:
    def change(fact: Fact) -> None:
        if fact["kind"] == "arrived" and fact["step"] in steps:
            fact["undone"] = {"to": steps[fact["step"]], "tensors": 9}

    result = conclude(tmp_path, changed(healthy(2), change))
    assert rules(result) == {"parameter-stopped-moving": found}
