"""The tokens that a few rows use, in the place of a vocabulary of 150,000, which would be nearly
all of a tiny model and of its time.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.families.tokens import TokenIds
from vtool.models.processor import Processor

LARGE = 1024
"""Entries; a vocabulary that has no more is left as it is."""
PLAIN = 16
"""Tokens of no row that are kept, so that a word can be put in another's place."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model reads: `kept[i]` is the tokenizer's id of its token i."""

    kept: Tensor
    """int64, ascending"""
    special: frozenset[int]
    """Tokens here that are no words."""

    def __len__(self) -> int:
        return len(self.kept)

    def sample(self, sample: Sample) -> Sample:
        """The same row, in this vocabulary's ids."""
        labels = sample.labels.clone()
        there = labels != IGNORED
        labels[there] = self.ids(labels[there])
        return replace(sample, input_ids=self.ids(sample.input_ids), labels=labels)

    def processor(self, processor: Processor) -> Processor:
        """The same, with this vocabulary's ids.

        Its tokenizer is as it was, and nothing is to be encoded with it.
        """
        given = {
            part: None if token is None else int(self.ids(torch.tensor(token)))
            for part, token in asdict(processor.ids).items()
        }
        return replace(processor, ids=TokenIds(**given))  # type: ignore[arg-type]

    def ids(self, tokens: Tensor) -> Tensor:
        """The tokenizer's ids, here."""
        found = torch.searchsorted(self.kept, tokens)
        assert torch.equal(self.kept[found], tokens), "of a token that no row has"
        return found


def vocabulary(processor: Processor, samples: Sequence[Sample], *, whole: bool) -> Vocabulary:
    """That of these samples, or the tokenizer's whole."""
    named = {token for token in asdict(processor.ids).values() if token is not None} | set(
        processor.tokenizer.all_special_ids
    )
    size = len(processor.tokenizer)
    if whole or size <= LARGE:
        return Vocabulary(torch.arange(size), frozenset(named))
    used = named | {int(token) for sample in samples for token in sample.input_ids}
    plain = (token for token in range(size) if token not in used)
    kept = torch.tensor(
        sorted(used | {token for token, _ in zip(plain, range(PLAIN), strict=False)})
    )
    return Vocabulary(
        kept, frozenset(torch.searchsorted(kept, torch.tensor(sorted(named))).tolist())
    )
