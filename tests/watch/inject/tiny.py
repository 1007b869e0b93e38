"""A language model on torch alone, built as transformers builds them, and a loop that trains it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

VOCABULARY, HIDDEN, END = 61, 16, 2


class Output(NamedTuple):
    last_hidden_state: Tensor


class Block(nn.Module):
    """Causal attention with one head, and a layer of its own for each position."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / HIDDEN**0.5
        return x + self.dropout(scores.masked_fill(~mask, -1e4).softmax(-1) @ self.v(x))


class Base(nn.Module):
    """The backbone."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.block = Block(dropout)
        self.norm = nn.LayerNorm(HIDDEN)
        self.leak = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        n = input_ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device=input_ids.device).tril()[None]
        if position_ids is not None and not self.leak:
            text = (position_ids == 0).cumsum(-1)
            mask = mask & (text[:, :, None] == text[:, None, :])
        if attention_mask is not None and not self.leak:
            mask = mask & (attention_mask != 0)[:, None, :]
        x = self.norm(self.block(self.embed(input_ids), mask))
        return Output(x)


class Model(nn.Module):
    """The model with its head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.model = Base(dropout)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.config = SimpleNamespace(model_type="tiny", eos_token_id=END, image_token_id=3)

    @property
    def base_model(self) -> Base:
        return self.model

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed

    def forward(self, **given: Any) -> Tensor:
        return self.lm_head(self.model(**given).last_hidden_state)  # type: ignore[no-any-return]


def make(dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    return Model(dropout).to(dtype)


def batch(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Return rows padded on the right."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(4, VOCABULARY, (length,), generator=random)
        ids[row, length - 1] = END
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def loss_of(model: Any, inputs: dict[str, Tensor], prompt: int = 2) -> tuple[Tensor, int]:
    """Return the sum of the tokens' NLL behind a prompt, and how many they are."""
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == 0, -100)
    labels[:, :prompt] = -100
    z = model(**inputs)[:, :-1].flatten(0, 1)
    labels = labels[:, 1:].flatten()
    total = cross_entropy(z.float(), labels, ignore_index=-100, reduction="sum")
    return total, int((labels >= 0).sum())


def facts(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the facts of a folder, all or those of a kind."""
    lines = [
        json.loads(line)
        for file in sorted(folder.glob("rank*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return [line for line in lines if kind in (None, line["kind"])]
