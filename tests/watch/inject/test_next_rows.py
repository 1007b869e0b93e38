"""The id with which the next row begins is no label of a row that ends before padding."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vtool.watch.inject.vtool_watch.learnt import _next_rows

FOUND: Any = SimpleNamespace(ends=(9,), specials={"pad": [0]})
IDS = torch.tensor([[1, 5, 6, 0, 0], [2, 5, 6, 7, 0], [3, 5, 6, 7, 8]])


LEFT = torch.tensor([[0, 0, 1, 5, 6], [2, 5, 6, 7, 8], [0, 3, 5, 6, 7]])


def places(ids: torch.Tensor, **inputs: Any) -> dict[tuple[int, int], int]:
    found = _next_rows(inputs, ids, FOUND).view(ids.shape)
    return {(int(row), int(at)): int(found[row, at]) for row, at in (found >= 0).nonzero()}


def test_it_is_looked_for_where_padding_follows_and_the_last_row_continues_in_the_first() -> None:
    mask = (IDS != 0).long()
    assert places(IDS, attention_mask=mask) == {(0, 2): 2, (0, 4): 2, (1, 3): 3, (1, 4): 3}
    turned = IDS.roll(1, 0)
    found = places(turned, attention_mask=mask.roll(1, 0))
    assert found == {(1, 2): 2, (1, 4): 2, (2, 3): 3}


def test_it_is_looked_for_at_the_end_of_rows_that_are_padded_on_the_left() -> None:
    assert places(LEFT, attention_mask=(LEFT != 0).long()) == {(0, 4): 2}


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        (IDS, None),  # without a mask nobody knows where a row ends
        (IDS[:, :3], torch.ones(3, 3)),  # rows of a stream continue in the next one
        (IDS[:1], (IDS[:1] != 0).long()),  # one row has no next one
        (torch.where(IDS < 4, torch.where(IDS > 0, 9, 0), IDS), (IDS != 0).long()),  # begin by end
    ],
)
def test_where_it_may_be_meant_nothing_is_looked_for(ids: torch.Tensor, mask: Any) -> None:
    assert places(ids, **({} if mask is None else {"attention_mask": mask})) == {}
