"""Batches that come again and again are found by one rule; epochs of few rows are none."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules
from vtool.diagnostics.result import Result


def shown(
    folder: Path, batches: Sequence[str], data: int | None, world: int = 1, **loader: object
) -> Result:
    """Conclude from steps with some batches of four rows; `data`: rows of the data set."""

    def change(fact: Fact) -> None:
        if fact["kind"] == "rows":
            name = batches[fact["step"]]
            fact["rows"] = [f"{fact['rank']}-{name}-{fact['micro']}-{row}" for row in range(2)]
            fact["row_of"] = [0, 1]
            if fact["data"]:
                fact["data"] = [{**fact["data"][0], "rows": data, **loader}]

    return conclude(folder, changed(healthy(world, len(batches)), change))


@pytest.mark.parametrize(
    ("batches", "data", "said"),
    [
        ("AAAA", 100, "4 steps all have the same rows: 4 different ones, of a data set of 100"),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 16, "30 steps all have the same rows"),
        ("AAAAA", None, "5 steps all have the same rows: 4 different ones"),
        ("ABAB", 100, "4 steps have 2 batches in turn"),
        ("ABCABCA", 100, "7 steps have 3 batches in turn"),
    ],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_same_batches_are_found_and_nothing_else_is_said_of_them(
    tmp_path: Path, batches: str, data: int | None, said: str, shuffled: bool
) -> None:
    result = shown(tmp_path, batches, data, shuffled=shuffled)
    assert rules(result) == {"same-batch-every-step": "warning"}
    assert said in result.findings[0].message


@pytest.mark.parametrize(
    ("batches", "data"),
    [
        ("AAAAAA", 4),  # an epoch is one step
        ("ABABAB", 8),
        ("ABABAB", None),  # of a length that is not known: epochs of two steps
        ("ABCD", 100),
        ("AABBCCDD", 100),  # a policy's steps with the rows of one generation
        ("ABCDA", 16),
    ],
)
def test_epochs_and_other_batches_are_no_finding(
    tmp_path: Path, batches: str, data: int | None
) -> None:
    result = shown(tmp_path, batches, data)
    assert rules(result) == {}
    assert result.checks["same-batch-every-step"] == "passed"


def test_an_epoch_of_one_step_that_leaves_out_its_last_rows_is_no_finding(tmp_path: Path) -> None:
    result = shown(tmp_path, "AAAA", 5, drop_last=True)
    assert "same-batch-every-step" not in rules(result)


def test_all_ranks_together_show_the_data(tmp_path: Path) -> None:
    assert rules(shown(tmp_path, "AAAA", 8, world=2)) == {}
    found = shown(tmp_path / "more", "AAAA", 80, world=2)
    assert rules(found) == {"same-batch-every-step": "warning"}


def test_three_steps_are_too_few(tmp_path: Path) -> None:
    result = shown(tmp_path, "AAA", 100)
    assert rules(result) == {}
    assert result.checks["same-batch-every-step"] == "not-run"
    assert "it takes 4 steps" in result.details["same-batch-every-step"]["reason"]


def test_rows_that_are_missing_in_the_facts_are_no_pass(tmp_path: Path) -> None:
    def drop(fact: Fact) -> None:
        if fact["kind"] == "rows":
            del fact["rows"]

    result = conclude(tmp_path, changed(healthy(2, 4), drop))
    for name in ("same-batch-every-step", "rows-seen-unevenly", "ranks-see-same-rows"):
        assert result.checks[name] == "not-run", name
