"""Rows by themselves: what is no leak, and that nothing of the model is changed by looking."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.watch.inject import tiny
from tests.watch.inject.test_watch import Loop
from vtool.watch.inject.vtool_watch import kinds


class Noisy(tiny.Base):
    """Adds noise to embeddings in training, as NEFTune does."""

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        handle = self.embed.register_forward_hook(
            lambda module, args, out: out + torch.randn_like(out) if self.training else None
        )
        try:
            return super().forward(input_ids, **given)
        finally:
            handle.remove()


class Remembering(tiny.Base):
    """Keeps the length of the longest batch so far, as some rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.longest: int | Tensor = 0
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        self.longest = torch.tensor(input_ids.shape[1])
        self.calls.add_(1)
        return super().forward(input_ids, **given)


class RotaryOfLength(tiny.Base):
    """Has a rotary embedding that is another one for long batches."""

    rope_type = "dynamic"
    original_max_seq_len = 8


def loop_of(base: tiny.Base, folder: Path) -> Loop:
    model = tiny.make()
    model.model = base
    return Loop(folder, model)


def test_noise_in_training_is_no_leak(tmp_path: Path) -> None:
    loop_of(Noisy(), tmp_path).run(1)
    for alone in tiny.facts(tmp_path, "alone"):
        assert alone["worst_over_tolerance"] > 100
        assert alone["repeats"] is False
    assert [fact["repeats"] for fact in tiny.facts(tmp_path, "causal")] == [False, False]


def test_a_leak_is_there_when_the_batch_is_computed_once_more(tmp_path: Path) -> None:
    model = tiny.make()
    model.model.leak = True
    loop = Loop(tmp_path, model)
    inputs = {"input_ids": torch.arange(4, 16)[None], "position_ids": torch.arange(12)[None] % 6}
    loop.model(**inputs).logsumexp(-1).sum().backward()
    loop.update()
    (alone,) = tiny.facts(tmp_path, "alone")
    assert alone["worst_over_tolerance"] > 100
    assert alone["repeats"] is True


def test_what_a_model_keeps_of_its_batches_is_left_as_it_was(tmp_path: Path) -> None:
    base = Remembering()
    loop_of(base, tmp_path).run(1)
    assert tiny.facts(tmp_path, "alone")
    assert (int(base.longest), float(base.calls)) == (7, 3)


@pytest.mark.parametrize(("longest", "run"), [(8, True), (9, False)])
def test_rotary_embeddings_of_the_batchs_length_are_not_run(
    tmp_path: Path, longest: int, run: bool
) -> None:
    loop = loop_of(RotaryOfLength(), tmp_path)
    loss, _ = tiny.loss_of(loop.model, tiny.batch([longest, 5]))
    loss.backward()
    loop.update()
    assert bool(tiny.facts(tmp_path, "alone")) == run
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "alone"]
    assert any("rotary embedding" in one for one in why) != run


def block_mask(numbers: list[list[int]]) -> Tensor:
    """Return the mask of rows × 1 × queries × keys in which each text sees itself alone."""
    return torch.tensor(
        [
            [[[k <= q and row[k] == row[q] > 0 for k in range(len(row))] for q in range(len(row))]]
            for row in numbers
        ]
    )


@pytest.mark.parametrize(
    "numbers",
    [
        [[1, 1, 1, 1], [1, 1, 1, 0]],
        [[0, 0, 1, 1], [1, 1, 1, 1]],
        [[1, 1, 2, 2, 2, 3, 0, 0]],
        [[1, 2, 3]],
    ],
)
def test_a_mask_of_four_dimensions_counts_the_texts_that_it_was_made_of(
    numbers: list[list[int]],
) -> None:
    mask, ids = block_mask(numbers), torch.tensor(numbers)
    added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    assert torch.equal(kinds.text_numbers(mask, ids), ids)
    assert torch.equal(kinds.text_numbers(added, ids), ids)
    assert torch.equal(kinds.text_numbers(mask[:1], ids), ids[:1].expand(ids.shape))


def test_a_mask_that_parts_no_texts_is_not_counted() -> None:
    ids = torch.ones(1, 4, dtype=torch.long)
    causal = torch.ones(4, 4).tril().bool()[None, None]
    window = causal & causal.transpose(2, 3).roll(1, 2)  # each sees itself and the one before
    assert torch.equal(kinds.text_numbers(causal, ids), ids)
    assert kinds.text_numbers(window, ids) is None
    assert kinds.text_numbers(causal.long(), ids) is None  # 1 may stand for what is hidden
    assert kinds.text_numbers(causal[:, :, -1:], ids) is None
    assert kinds.text_numbers(ids, ids) is ids
