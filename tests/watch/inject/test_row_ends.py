"""Runs of one id at the ends of rows, and how much of them is learnt."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vtool.watch.inject.vtool_watch.row_ends import repeated_places, row_ends


def facts(ids: Tensor, live: Tensor | None = None, mask: Tensor | None = None) -> dict[str, Any]:
    """Return the fields for ids of which all is learnt, or some places, each the next id."""
    live = torch.ones_like(ids, dtype=torch.bool) if live is None else live
    return row_ends(ids, live, live, ids.roll(-1, 1), mask)


def test_a_run_behind_a_text_is_counted_in_each_row() -> None:
    ids = torch.tensor(
        [[7, 8, 9, 2, 0, 0, 0, 0], [7, 8, 9, 4, 5, 6, 7, 2], [7, 2, 0, 0, 0, 0, 0, 0]]
    )
    found = facts(ids, mask=ids != 0)
    assert found["rows"] == found["to_the_end"] == 3
    assert found["ends"] == [[0, 4, 4, 4, 3], [0, 6, 6, 6, 5]]
    assert found["begins"] == []
    assert found["within"] == {"0": 0}


def test_a_run_before_a_text_is_counted_too() -> None:
    ids = torch.tensor([[0, 0, 0, 0, 7, 8, 2], [3, 3, 7, 8, 9, 8, 2]])
    found = facts(ids, mask=ids != 0)
    assert found["begins"] == [[0, 4, 3, 3, 3]]
    assert found["ends"] == []


def test_what_is_not_learnt_is_no_finding() -> None:
    ids = torch.tensor([[7, 8, 9, 2, 0, 0, 0, 0]])
    live = torch.zeros_like(ids, dtype=torch.bool)
    live[:, :4] = True  # the text, and one token behind it
    found = facts(ids, live)
    assert (found["ends"], found["to_the_end"], found["rows"]) == ([], 0, 1)


def test_runs_within_rows_are_counted_by_row() -> None:
    ids = torch.tensor([[5, 5, 5, 8, 5, 5, 5, 9, 5, 5, 5, 5], [1, 2, 5, 5, 5, 3, 1, 2, 3, 4, 5, 6]])
    found = facts(ids)
    assert found["within"] == {"5": 2}
    assert [one[:2] for one in found["ends"]] == [[5, 4]]
    assert [one[:2] for one in found["begins"]] == []  # of three, two are learnt


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_rows(length: int) -> None:
    assert facts(torch.zeros(2, length, dtype=torch.long))["ends"] == []


def test_places_of_runs() -> None:
    ids = torch.tensor([[0, 0, 0, 4, 5, 5], [4, 0, 0, 0, 0, 0]])
    expected = [[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]]
    assert repeated_places(ids).int().tolist() == expected
