"""The first token of a text, learnt from the end of the one before it."""

from typing import Any

import pytest
import torch

from vtool.watch.inject.vtool_watch.borders import border_facts

IDS = torch.tensor([[5, 6, 7, 2, 8, 9, 2, 4, 3, 2]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]])
NUMBERS = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 3, 3, 3]])
BLOCKS = (NUMBERS[:, :, None] == NUMBERS[:, None]).tril()[:, None]


def borders(
    inputs: dict[str, Any], learnt: list[int], mask: Any = None, ids: torch.Tensor = IDS
) -> tuple[int, int]:
    at = torch.tensor(learnt)
    target = torch.cat([ids.flatten(), ids.new_tensor([-1])])[at + 1]
    found = border_facts(inputs, mask, ids, at, target, (2,))
    return found["texts"], found["learnt"]


@pytest.mark.parametrize(
    ("inputs", "mask"),
    [
        ({"position_ids": POSITIONS}, None),
        ({"attention_mask": NUMBERS}, None),
        ({"cu_seq_lens_q": torch.tensor([0, 4, 7, 10])}, None),
        ({}, BLOCKS),
    ],
)
def test_every_way_to_separate_texts_is_known(inputs: dict[str, Any], mask: Any) -> None:
    assert borders(inputs, list(range(9)), mask) == (2, 2)
    assert borders(inputs, [0, 1, 2, 4, 5, 6, 7, 8], mask) == (2, 1)
    assert borders(inputs, [0, 1, 2, 4, 5, 7, 8], mask) == (2, 0)


def test_one_long_text_has_no_borders() -> None:
    assert borders({}, list(range(9))) == (0, 0)
    assert borders({"position_ids": torch.arange(10)[None]}, list(range(9))) == (0, 0)


def test_rows_that_are_padded_on_the_left_have_no_borders() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
    ids = torch.tensor([[0, 0, 0, 5, 2], [6, 7, 8, 9, 2]])
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    given = {"attention_mask": mask, "position_ids": positions}
    assert borders(given, [3, 5, 6, 7, 8], ids=ids) == (0, 0)


def test_an_end_token_that_begins_the_next_text_too_is_the_end_of_the_first() -> None:
    ids = torch.tensor([[2, 6, 7, 2, 8, 9]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    assert borders({"position_ids": positions}, [0, 1, 2, 3, 4], ids=ids) == (0, 0)


def test_a_label_that_is_no_token_of_the_next_text_is_none_of_these() -> None:
    target = torch.tensor([2])
    found = border_facts({"position_ids": POSITIONS}, None, IDS, torch.tensor([3]), target, (2,))
    assert found == {"texts": 2, "learnt": 0}
