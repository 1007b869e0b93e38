"""Spans know the order of their lengths, where it saves calls."""

import torch

from vtool.models.spans import Spans


def test_spans_that_are_mostly_in_order_of_length_are_left_so() -> None:
    assert Spans.of([4] * 9).order is None
    assert Spans.of([7, 5, 3, 9]).order is None
    assert Spans.of([2, 1, 2]).map(lambda one: one + 1).order is None
    order = Spans.of([2, 1] * 3).order
    assert order is not None
    assert order.tolist() == [2, 5, 8, 0, 1, 3, 4, 6, 7]
    read = Spans.ending_at(torch.tensor([0, 2, 3, 5, 6, 8, 9])).order
    assert read is not None
    assert read.tolist() == order.tolist()
