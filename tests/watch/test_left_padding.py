"""Rows behind padding that are others in their batch: what the model was not given is named."""

from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules


@pytest.mark.parametrize(
    ("begin", "names", "named"),
    [
        (4, ["input_ids", "attention_mask"], True),
        (4, ["input_ids", "attention_mask", "position_ids"], False),
        (0, ["input_ids", "attention_mask"], False),
    ],
)
def test_positions_that_count_padding_are_named(
    tmp_path: Path, begin: int, names: list[str], named: bool
) -> None:
    def pad(fact: Fact) -> None:
        if fact["kind"] == "micro":
            fact |= {"batch": "padded", "names": names}
        if fact["kind"] in ("alone", "causal"):
            fact["batch"] = "padded"
        for document in fact.get("documents", ()) if fact["kind"] == "alone" else ():
            document |= {"begin": begin, "apart": 0.7, "first_apart": 0}

    result = conclude(tmp_path, changed(healthy(), pad))
    assert rules(result) == {"row-changes-in-batch": "error"}
    assert ("position_ids =" in str(result.findings[0].help)) == named
