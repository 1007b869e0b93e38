"""Rows whose images transformers' own processor encodes, with their text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vtool.data.chat import ChatTexts, render_question, split_chat
from vtool.data.media import load_picture
from vtool.data.row import Row, refuse, shown_value
from vtool.data.visuals import Visuals
from vtool.models.processor import Processor
from vtool.models.whole_processor import ProcessorFails, WholeProcessor

_PARTS = 3
"""The texts of a turn: what is asked, the answer, and the token that ends it."""


def encode_whole(
    row: Row, chat: ChatTexts, processor: Processor, whole: WholeProcessor
) -> tuple[list[tuple[int, ...]], Visuals, tuple[str, ...]]:
    """Return the token ids of a chat's texts, the inputs of its images, and their traits.

    Raises:
        Findings: `broken-image`; `image-token-mismatch`, as the processor says.
    """
    pieces, visuals, traits = _encoded(row, _written(chat), row.images, processor, whole)
    return (
        [ids for place, ids in enumerate(pieces) if place % _PARTS != _PARTS - 1],
        visuals,
        traits,
    )


def whole_prompt(
    row: Row, processor: Processor, whole: WholeProcessor
) -> tuple[Tensor, Visuals, str]:
    """Return the ids before a chat's last supervised answer, as in training; and that answer."""
    chat = split_chat(row, processor)
    last = chat.turns[-1]
    texts = _written(chat)[: _PARTS * (len(chat.turns) - 1) + 1]
    shown = sum(kind == "image" for kind in row.visuals(last.message))
    pieces, visuals, _ = _encoded(row, texts, row.images[:shown], processor, whole)
    return _joined(pieces), visuals, last.text.removesuffix(last.end)


def whole_question(row: Row, processor: Processor, whole: WholeProcessor) -> tuple[Tensor, Visuals]:
    """Return the ids of a chat that waits for an answer."""
    texts = (render_question(row, processor),)
    pieces, visuals, _ = _encoded(row, texts, row.images, processor, whole)
    return _joined(pieces), visuals


def _joined(pieces: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([token for piece in pieces for token in piece])


def _written(chat: ChatTexts) -> tuple[str, ...]:
    """Return a chat's texts with the text of each end."""
    *pairs, rest = chat.texts
    turns = zip(pairs[::2], pairs[1::2], chat.turns, strict=True)
    return (*(text for asked, answer, turn in turns for text in (asked, answer, turn.end)), rest)


def _encoded(
    row: Row,
    texts: Sequence[str],
    images: Sequence[object],
    processor: Processor,
    whole: WholeProcessor,
) -> tuple[tuple[tuple[int, ...], ...], Visuals, tuple[str, ...]]:
    pictures: list[object] = []
    traits: list[str] = []
    for image in images:
        picture, own = load_picture(row, image, "broken-image", "its image", processor.pictures)
        pictures.append(picture)
        traits += own
    try:
        made = whole.encode(texts, pictures)
    except ProcessorFails as error:
        message = f"{row.id}: the processor refuses it: {shown_value(str(error))}"
        raise refuse("image-token-mismatch", message, row.origin) from error
    return made.ids, Visuals(made.inputs, len(pictures), 0, made.tokens), tuple(traits)
