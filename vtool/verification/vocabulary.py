"""A vocabulary of the tokens that a few rows use.

One of 150,000 would be nearly all of a tiny model's weights and time.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.families.tokens import TokenIds
from vtool.models.processor import Processor

_LARGE = 1024
"""The most tokens of a vocabulary that is left as it is."""
_PLAIN = 16
"""The number of tokens of no row that are kept, so that one word can replace another."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A choice of a tokenizer's tokens: token i of the model is the tokenizer's `kept[i]`."""

    kept: Tensor
    """int64, ascending."""
    special: frozenset[int]
    """Tokens of the model that are no words."""

    def __len__(self) -> int:
        return len(self.kept)

    def convert_sample(self, sample: Sample) -> Sample:
        """Return a sample with this vocabulary's ids."""
        labels = sample.labels.clone()
        there = labels != IGNORED
        labels[there] = self.ids(labels[there])
        return replace(sample, input_ids=self.ids(sample.input_ids), labels=labels)

    def convert_processor(self, processor: Processor) -> Processor:
        """Return a processor with this vocabulary's ids.

        Its tokenizer is unchanged: nothing may be encoded with it.
        """
        given = {
            part: token if token is None or token < 0 else int(self.ids(torch.tensor(token)))
            for part, token in asdict(processor.ids).items()
        }
        ids = TokenIds(**given)
        return replace(processor, ids=ids, vocabulary=len(self))

    def ids(self, tokens: Tensor) -> Tensor:
        """Convert the tokenizer's ids into this vocabulary's."""
        found = torch.searchsorted(self.kept, tokens)
        assert torch.equal(self.kept[found], tokens), "of a token that no row has"
        return found


def choose_vocabulary(
    processor: Processor, samples: Sequence[Sample], *, whole: bool
) -> Vocabulary:
    """Return the vocabulary of these samples; the tokenizer's if `whole`, or if that is small."""
    ids = (token for token in asdict(processor.ids).values() if token is not None and token >= 0)
    named = {*ids, *processor.tokenizer.all_special_ids}
    used = named | {int(token) for sample in samples for token in sample.input_ids}
    size = max(len(processor.tokenizer), max(used) + 1)  # a tokenizer may leave ids out
    if processor.whole is not None:
        size = processor.vocabulary or size  # its config names more ids than vtool knows
    if whole or size <= _LARGE:
        return Vocabulary(torch.arange(size), frozenset(named))
    plain = (token for token in range(size) if token not in used)
    kept = torch.tensor(
        sorted(used | {token for token, _ in zip(plain, range(_PLAIN), strict=False)})
    )
    return Vocabulary(
        kept, frozenset(torch.searchsorted(kept, torch.tensor(sorted(named))).tolist())
    )
