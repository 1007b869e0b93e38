"""Answers with their probabilities: greedy, or sampled by a seed of each row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor

from vtool.models.generate import generate_tokens, shown_answer
from vtool.models.processor import Processor


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way in which tokens are drawn."""

    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Generated:
    """An answer, token by token."""

    text: str
    ids: tuple[int, ...]
    """The tokens, the end token included."""
    nll: float
    """−Σ log p of these, each behind those before it, at temperature 1."""
    stopped: bool
    """True if it had reached the longest that was asked for."""


def generate_answers(
    model: Any,
    processor: Processor,
    inputs: dict[str, Tensor],
    max_new_tokens: int,
    rows: Sequence[int],
    sampling: Sampling | None = None,
) -> list[Generated]:
    """Return an answer for each prompt of a batch.

    Args:
        model: as `generate_tokens` takes it.
        processor: has the tokenizer, and the ids that end an answer and pad it.
        inputs: a batch of prompts, padded on the left.
        max_new_tokens: the longest answer, in tokens.
        rows: the number of each row: what is drawn depends on it and the seed, and on no other row.
        sampling: None: the most probable token each time.
    """
    recorder = _Recorder.of(rows, sampling)
    tokens = generate_tokens(model, processor, inputs, max_new_tokens, [recorder])
    taken = torch.stack(recorder.taken, 1).double().cpu()
    made = []
    for row, logs in zip(tokens.tolist(), taken, strict=True):
        text = shown_answer(processor.tokenizer, row)
        length = answer_length(row, processor)
        cut = length is None
        length = len(row) if length is None else length
        made.append(Generated(text, tuple(row[:length]), -float(logs[:length].sum()), cut))
    return made


def answer_length(ids: Sequence[int], processor: Processor) -> int | None:
    """Return the tokens of an answer with the one that ends it; None where none does."""
    stops = set(processor.stop_texts.values())
    return next((place + 1 for place, token in enumerate(ids) if token in stops), None)


def row_seed(seed: int, row: int) -> int:
    """Return the seed of what is drawn for a row: below 2⁶³, and of nothing else's."""
    return xxhash.xxh3_64_intdigest(f"{seed} {row}".encode()) >> 1


@dataclass(slots=True)
class _Recorder:
    """A step of generation that keeps log p of what is taken, and draws where that is asked.

    Drawing is the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014, arXiv 1411.0030): the
    largest of logits / T + Gumbel noise is a draw of softmax(logits / T). So the greedy loop
    draws, with noise of each row's own.
    """

    temperature: float
    noise: tuple[torch.Generator, ...]
    taken: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Sequence[int], sampling: Sampling | None) -> "_Recorder":
        if sampling is None:
            return cls(1.0, ())
        seeds = [row_seed(sampling.seed, row) for row in rows]
        return cls(
            sampling.temperature, tuple(torch.Generator().manual_seed(seed) for seed in seeds)
        )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        wide = scores.float()
        chosen = wide
        if self.noise:
            drawn = [torch.rand(wide.shape[1], generator=one) for one in self.noise]
            uniform = torch.stack(drawn).clamp_min(1e-20).to(wide.device)
            chosen = wide / self.temperature - (-uniform.log()).log()
        tokens = chosen.argmax(-1, keepdim=True)
        self.taken.append((wide.gather(1, tokens) - wide.logsumexp(-1, keepdim=True)).squeeze(1))
        return chosen
