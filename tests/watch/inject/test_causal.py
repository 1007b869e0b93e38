"""The first micro-batch of each kind is computed again with other tokens behind learnt places."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.watch.inject import tiny
from tests.watch.inject.test_alone import block_mask
from tests.watch.inject.test_watch import Loop
from vtool.watch.inject.vtool_watch.kinds import kind_of_batch, parted

IDS = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0]])


def kind(ids: Tensor, pads: list[int] | None = None, **inputs: Any) -> str:
    return kind_of_batch(parted(inputs, ids), ids, pads or [])


def test_kinds() -> None:
    ones, mask = torch.ones_like(IDS), (IDS != 0).long()
    assert kind(IDS) == kind(IDS, attention_mask=ones) == "plain"
    assert kind(IDS, attention_mask=mask) == "padded"
    assert kind(IDS.flip(1), attention_mask=mask.flip(1)) == "padded"
    assert kind(torch.tensor([[5, 6, 0, 0]]), [0]) == "padded"
    assert kind(torch.tensor([[5, 6, 7, 0]]), [0]) == "plain"  # one may end a text
    again = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]])
    assert kind(IDS, position_ids=again) == "packed"
    assert kind(IDS, position_ids=again, attention_mask=mask) == "packed, padded"
    assert kind(IDS, attention_mask=torch.tensor([[1, 1, 2, 2], [1, 1, 1, 0]])) == "packed, padded"
    assert kind(IDS[:1], cu_seq_lens_q=torch.tensor([0, 2, 4])) == "packed"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([[1, 1, 1, 1], [1, 1, 1, 1]], "plain"),
        ([[1, 1, 1, 1], [1, 1, 0, 0]], "padded"),
        ([[1, 1, 2, 2], [1, 1, 1, 1]], "packed"),
    ],
)
def test_kinds_by_a_mask_of_four_dimensions(numbers: list[list[int]], expected: str) -> None:
    assert kind(IDS, attention_mask=block_mask(numbers)) == expected
    assert kind(IDS, attention_mask={"full": block_mask(numbers), "other": None}) == expected


def test_a_mask_that_shows_no_texts_is_another_kind() -> None:
    causal = torch.ones(4, 4).tril().bool()[None, None].expand(2, -1, -1, -1)
    assert kind(IDS, attention_mask=causal.long()) == "other"
    numbers = parted({"attention_mask": causal}, IDS, torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]]))
    assert kind_of_batch(numbers, IDS, []) == "padded"  # the model was given the mask of rows, too


class AheadWherePadded(tiny.Base):
    """Sees all of a row where a batch has padding."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        if attention_mask is None or bool(attention_mask.all()):
            return super().forward(input_ids, attention_mask, position_ids)
        mask = (attention_mask != 0)[:, None, :].expand(-1, input_ids.shape[1], -1)
        return tiny.Output(self.norm(self.block(self.embed(input_ids), mask)))


def causal(folder: Path, base: tiny.Base, steps: list[list[dict[str, Tensor]]]) -> list[Any]:
    model = tiny.make()
    model.model = base
    loop = Loop(folder, model)
    for batches in steps:
        for batch in batches:
            loss, _ = tiny.loss_of(loop.model, batch)
            loss.backward()
        loop.update()
    assert tiny.facts(folder, "error") == []
    return tiny.facts(folder, "causal")


def test_the_first_of_each_kind_is_tested(tmp_path: Path) -> None:
    plain, padded = tiny.batch([9, 9]), tiny.batch([12, 7])
    packed = tiny.batch([12]) | {"position_ids": torch.arange(12)[None] % 6}
    steps = [[plain, plain], [plain, padded], [padded, packed]]
    facts = causal(tmp_path, tiny.Base(), steps)
    found = [(fact["batch"], fact["step"], fact["micro"]) for fact in facts]
    assert found == [("plain", 0, 0), ("padded", 1, 1), ("packed", 2, 1)]
    for fact in facts:
        assert fact["apart"] <= fact["tolerance"]
        assert fact["repeats"] is True
        assert fact["replaced"] > 0
    kinds = [fact["batch"] for fact in tiny.facts(tmp_path, "micro")]
    assert kinds == ["plain", "plain", "plain", "padded", "padded", "packed"]


def test_what_is_lost_where_there_is_padding_is_seen_there_alone(tmp_path: Path) -> None:
    steps = [[tiny.batch([9, 9]), tiny.batch([12, 7])]]
    plain, padded = causal(tmp_path, AheadWherePadded(), steps)
    assert plain["apart"] <= plain["tolerance"]
    assert padded["apart"] > 10 * padded["certain"]


def test_with_dropout_nothing_is_computed(tmp_path: Path) -> None:
    (fact,) = causal(tmp_path, tiny.Base(0.1), [[tiny.batch([12, 7])]])
    assert fact["dropout"] is True
    assert "apart" not in fact


def test_a_batch_without_text_behind_what_is_learnt_waits_for_another(tmp_path: Path) -> None:
    short = tiny.batch([4, 3])  # what is learnt is an end token, with nothing behind it
    facts = causal(tmp_path, tiny.Base(), [[short], [tiny.batch([12, 7])]])
    assert [fact["step"] for fact in facts] == [1]
    why = [fact["why"] for fact in tiny.facts(tmp_path, "skipped") if fact["what"] == "causal"]
    assert why == ["no row of it has text behind a learnt place that can be replaced"]
