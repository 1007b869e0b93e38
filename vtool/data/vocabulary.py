"""Token ids of rows, held against the rows of the model's embedding.

A tokenizer may have more tokens than the model has rows, as long as no row has one of these; and a
model more rows than its tokenizer has tokens.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vtool.data.encode import Prompt, Sample
from vtool.data.loader import EncodedRows
from vtool.diagnostics import Diagnostic
from vtool.models.processor import Processor

RULE = "token-without-embedding"
_SHOWN = 3


def token_id_findings(
    split: str, rows: EncodedRows, kept: NDArray[np.void]
) -> Iterator[Diagnostic]:
    """Yield the finding of a split whose rows have ids that the embedding does not have.

    Args:
        kept: the table of its usable rows.
    """
    processor, vocabulary = rows.processor, rows.processor.vocabulary
    if vocabulary is None or not len(kept):
        return
    beyond = kept[kept["highest"] >= vocabulary]
    if len(beyond):
        index, highest = int(beyond["index"][0]), int(beyond["highest"].max())
        ids = rows.sample(index).input_ids.tolist()
        yield _finding(
            f"data.{split}: {len(beyond)} of {len(kept)} rows have token ids up to {highest}",
            f"{rows.rows.name(index)} has {_named(ids, processor)}",
            vocabulary,
        )
    elif processor.ids.pad >= vocabulary and _are_padded(split, rows, kept):
        yield _finding(
            f"data.{split}: rows are padded with token {_named([processor.ids.pad], processor)}",
            "its id is the tokenizer's pad_token",
            vocabulary,
        )


def beyond_vocabulary(
    where: str, processor: Processor, samples: Sequence[Sample | Prompt]
) -> Diagnostic | None:
    """Return the finding of a few encoded rows; None where the embedding has all of their ids."""
    if (vocabulary := processor.vocabulary) is None:
        return None
    ids = [token for sample in samples for token in sample.input_ids.tolist()]
    if (highest := max(ids, default=0)) < vocabulary:
        return None
    return _finding(
        f"{where}: token ids go up to {highest}",
        f"there are {_named(ids, processor)}",
        vocabulary,
    )


def _are_padded(split: str, rows: EncodedRows, kept: NDArray[np.void]) -> bool:
    """Return whether a batch of this split may have rows of several lengths."""
    alone = rows.settings.packing != "none" or rows.settings.micro_batch_size == 1
    if len(kept) < 2 or (split == "train" and alone):
        return False
    return split != "train" or bool(np.any(kept["tokens"] != kept["tokens"][0]))


def _named(ids: Sequence[int], processor: Processor) -> str:
    """Return the ids that the embedding does not have, with their tokens, each once."""
    assert processor.vocabulary is not None, "it was asked for"
    beyond = sorted({token for token in ids if token >= processor.vocabulary})
    names = [
        f"{token} ({processor.tokenizer.convert_ids_to_tokens(token)})" for token in beyond[:_SHOWN]
    ]
    return ", ".join(names) + (f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else "")


def _finding(what: str, which: str, vocabulary: int) -> Diagnostic:
    return Diagnostic(
        RULE,
        f"{what}, and the model's embedding has {vocabulary} rows (vocab_size in config.json), the"
        f" last for id {vocabulary - 1}: {which}",
        parameter="model.path",
    )
