"""Batches that come shifted already: the target behind a text is not known, and is not wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.watch.inject import tiny
from tests.watch.inject.test_watch import Loop

TEXTS = [[4, 9, 17, 30, 2], [5, 8, 2], [6, 21, 33, 2]]


def padded(rows: list[list[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def one_length() -> tuple[dict[str, Tensor], Tensor]:
    ids = torch.arange(4, 25).reshape(3, 7)
    return {"input_ids": ids[:, :-1]}, ids[:, 1:]


def masked() -> tuple[dict[str, Tensor], Tensor]:
    ids = padded([text[:-1] for text in TEXTS], 0)
    labels = padded([text[1:] for text in TEXTS], -100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}, labels


def padding_alone() -> tuple[dict[str, Tensor], Tensor]:
    inputs, labels = masked()
    return {"input_ids": inputs["input_ids"]}, labels


def packed() -> tuple[dict[str, Tensor], Tensor]:
    def joined(texts: list[list[int]]) -> Tensor:
        return torch.tensor([[token for text in texts for token in text]])

    positions = [list(range(len(text) - 1)) for text in TEXTS]
    inputs = {"input_ids": joined([t[:-1] for t in TEXTS]), "position_ids": joined(positions)}
    return inputs, joined([t[1:] for t in TEXTS])


@pytest.mark.parametrize("made", [one_length, masked, padding_alone, packed])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_targets_of_shifted_batches(tmp_path: Path, made: Any, twice: bool) -> None:
    inputs, labels = made()
    loop = Loop(tmp_path)
    loop.model.config.pad_token_id = 0
    loop.process = None
    loop = Loop(tmp_path, loop.model)
    z = loop.model(**inputs)
    if twice:
        z, labels = z[:, :-1], labels[:, 1:]
    cross_entropy(z.flatten(0, 1), labels.flatten()).backward()
    loop.update()
    (micro,) = tiny.facts(tmp_path, "micro")
    assert (micro["not_next"] > 0) == twice


class Decoder(tiny.Base):
    """Reads the ids of an answer, next to those of a question."""

    def forward(
        self, input_ids: Tensor | None = None, decoder_input_ids: Tensor | None = None
    ) -> Any:
        return super().forward(decoder_input_ids)


def test_a_decoders_own_ids_are_its_targets(tmp_path: Path) -> None:
    model = tiny.make()
    model.model = Decoder()
    loop = Loop(tmp_path, model)
    question, answer = torch.arange(4, 28).reshape(2, 3, 4)
    z = loop.model(input_ids=question, decoder_input_ids=answer)
    cross_entropy(z[:, :-1].flatten(0, 1), answer[:, 1:].flatten()).backward()
    loop.update()
    (micro,) = tiny.facts(tmp_path, "micro")
    assert (micro["supervised"], micro["not_next"]) == (9, 0)
