"""Encoding of rows: the tensors of one sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vtool.config.schema import Data
from vtool.config.schema.data import MOST_TEXT_BYTES
from vtool.data.chat import (
    IGNORED,
    Chat,
    ChatTexts,
    Turn,
    all_texts,
    control_tokens_in,
    label_chat,
    render_prompt,
    render_question,
    split_chat,
)
from vtool.data.outside import check_root
from vtool.data.renderings import Renderings, render_rows
from vtool.data.row import Row, refuse, shown_value
from vtool.data.sources import Rows
from vtool.data.tokens import TokenizerPanics, tokenize
from vtool.data.video import Clip, open_clip
from vtool.data.visuals import Visuals, expand_placeholders, visuals_of
from vtool.data.whole_rows import encode_whole, whole_prompt, whole_question
from vtool.diagnostics import Findings
from vtool.families.any_family import NO_TOKEN
from vtool.models.processor import Processor


@dataclass(frozen=True, slots=True)
class Sample:
    """One row, encoded. Shape: L tokens."""

    index: int
    input_ids: Tensor
    """int64 [L]"""
    labels: Tensor
    """int64 [L]; −100 where nothing is supervised."""
    visuals: Visuals
    turns: tuple[Turn, ...]
    """The supervised turns, before any truncation."""
    answer: int
    """Tokens of the last supervised answer, before any truncation and without its end token."""
    truncated: bool
    cut: int
    """Supervised tokens that the truncation has cost."""
    ends: int
    """Supervised turns whose last token, the end token, is among the labels."""
    traits: tuple[str, ...] = ()
    """Names of `vtool.models.pictures.PICTURE_TRAITS`: the losses of its pictures."""

    @property
    def supervised(self) -> int:
        """Tokens that have a label."""
        return int((self.labels != IGNORED).sum())

    @property
    def images(self) -> int:
        """Images and videos, as the vision tower is given them."""
        return self.visuals.images + self.visuals.videos

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(
            tensor.nbytes for tensor in (self.input_ids, self.labels, *self.visuals.inputs.values())
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a row to evaluate: everything before its last supervised turn."""

    index: int
    input_ids: Tensor
    visuals: Visuals
    reference: str
    """The text of that turn."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A row whose text is split into what is tokenized."""

    row: Row
    index: int
    clips: list[Clip]
    chat: ChatTexts


def encode_row(
    row: Row,
    index: int,
    processor: Processor,
    settings: Data,
    *,
    measure: bool = False,
    as_bytes: bool = False,
) -> Sample:
    """Encode a row, which has this number in its split.

    Args:
        measure: images are looked at and not cut: their patches are counted, and have no values
            (device meta). That is all that an audit needs, in a twentieth of the time.
        as_bytes: the patches of images are bytes, where the image processor's floats can be looked
            up for them.

    Raises:
        Findings: of the rules VT6xx, naming the row.
    """
    (encoded,) = encode_rows(
        [(index, row)], processor, settings, measure=measure, as_bytes=as_bytes
    )
    if isinstance(encoded, Exception):
        raise encoded
    return encoded


def encode_rows(
    rows: Sequence[tuple[int, Row]],
    processor: Processor,
    settings: Data,
    *,
    measure: bool = False,
    as_bytes: bool = False,
    begin: Callable[[int], None] | None = None,
) -> list[Sample | Exception]:
    """Encode rows with their numbers: the template and the tokenizer are called once for all.

    Args:
        measure: as `encode_row`.
        as_bytes: as `encode_row`.
        begin: is given a row's number before its images and videos are opened.

    Returns:
        For each row what `encode_row` returns or raises, up to the first one whose chat template
        takes too long: the others would wait for it as long.
    """
    made: dict[int, Sample | Exception] = {}
    passed = []
    special = _special(processor)  # makes the list anew each time
    for place, (_, row) in enumerate(rows):
        if error := _each(_check_row, row, special, processor, settings):
            made[place] = error
        else:
            passed.append(place)
    known = render_rows([rows[place][1] for place in passed], processor)
    opened: dict[int, _Opened] = {}
    begin = begin or (lambda index: None)
    for place, texts in zip(passed, known, strict=True):
        begin(rows[place][0])  # its videos
        one = _each(_opened, *rows[place], processor, texts)
        if isinstance(one, _Opened):
            opened[place] = one
            continue
        made[place] = one
        if _is_too_costly(one):
            made = {before: made[before] for before in made if before <= place}
            break
    # transformers' processor tokenizes a row's text with its images
    texts_of = [
        () if processor.whole and one.row.images else one.chat.texts for one in opened.values()
    ]
    tokens = _tokens(texts_of, processor)
    for (place, one), own in zip(opened.items(), tokens, strict=True):
        begin(one.index)  # its images
        made[place] = (
            _not_tokenized(one.row, own)
            if isinstance(own, TokenizerPanics)
            else own
            if isinstance(own, Exception)
            else _each(_filled, one, own, processor, settings, measure, as_bytes)
        )
    return [made[place] for place in sorted(made)]


_T = TypeVar("_T")


def _each(make: Callable[..., _T], *given: Any) -> _T | Exception:
    """Call a function for a row, and return its value, or the exception that it raises."""
    try:
        return make(*given)
    except MemoryError:  # of the machine, not of the row
        raise
    except Exception as error:  # one row's must not take the others along
        return error


def _is_too_costly(error: Exception) -> bool:
    return isinstance(error, Findings) and error.diagnostics[0].rule == "template-too-costly"


def _opened(index: int, row: Row, processor: Processor, known: Renderings) -> _Opened:
    clips = _clips(row, processor)
    return _Opened(row, index, clips, split_chat(row, processor, _texts(clips, processor), known))


def _tokens(
    chats: Sequence[Sequence[str]], processor: Processor
) -> list[list[list[int]] | Exception]:
    """Return the token ids of each chat's texts, or what the tokenizer raises for them."""
    tokenizer = processor.tokenizer
    try:
        ids = iter(tokenize(tokenizer, [text for chat in chats for text in chat]))
    except MemoryError:
        raise
    except Exception:  # one by one, it is known whose it is
        return [_each(tokenize, tokenizer, chat) for chat in chats]
    return [list(islice(ids, len(chat))) for chat in chats]


def _not_tokenized(row: Row, error: TokenizerPanics) -> Findings:
    message = f"{row.id}: the tokenizer fails: {shown_value(error)}"
    return refuse("tokenizer-fails", message, row.origin)


def _filled(
    opened: _Opened,
    tokens: Sequence[Sequence[int]],
    processor: Processor,
    settings: Data,
    measure: bool,
    as_bytes: bool,
) -> Sample:
    """Return a row with its images and videos, and cut to its length."""
    row = opened.row
    if processor.whole is not None and row.images:
        tokens, visuals, traits = encode_whole(row, opened.chat, processor, processor.whole)
        chat = label_chat(opened.chat, tokens)
        ids, labels = list(chat.ids), list(chat.labels)
    else:
        chat = label_chat(opened.chat, tokens)
        shown = (
            list(visuals_of(row, opened.clips, processor, measure=measure, as_bytes=as_bytes))
            if row.images or row.videos
            else []
        )
        traits = tuple(trait for visual in shown for trait in visual.traits)
        ids, labels, visuals = expand_placeholders(
            chat.ids, chat.labels, row, iter(shown), processor
        )
    truncated = settings.max_length is not None and len(ids) > settings.max_length
    cut, ends = 0, len(chat.turns)
    if truncated:
        assert settings.max_length is not None
        cut = sum(label != IGNORED for label in labels[settings.max_length :])
        ends = sum(
            label != IGNORED and after == IGNORED
            for label, after in islice(pairwise([*labels, IGNORED]), settings.max_length)
        )
        ids, labels = _truncate(row, ids, labels, settings.max_length, settings, processor)
        cut_tokens = {name: one[: len(ids)] for name, one in visuals.tokens.items()}
        visuals = replace(visuals, tokens=cut_tokens)
    return Sample(
        opened.index,
        torch.from_numpy(np.array(ids, np.int64)),  # four times faster than torch.tensor
        torch.from_numpy(np.array(labels, np.int64)),
        visuals,
        chat.turns,
        chat.answer,
        truncated,
        cut,
        ends,
        traits,
    )


def encode_prompt(rows: Rows, index: int, processor: Processor) -> Prompt:
    """Encode what is before row `index`'s last supervised turn.

    The row has been audited, so it has one.
    """
    row = rows.row(index)
    if processor.whole is not None:
        return Prompt(index, *whole_prompt(row, processor, processor.whole))
    clips = _clips(row, processor)
    ids, reference = render_prompt(row, processor, _texts(clips, processor))
    # The template has put a placeholder where each image of the *prompt* is; later turns' images
    # are not part of it.
    expanded, _, visuals = expand_placeholders(
        ids, ids, row, visuals_of(row, clips, processor), processor, whole=False
    )
    return Prompt(index, torch.tensor(expanded), visuals, reference)


def encode_question(row: Row, processor: Processor) -> Prompt:
    """Encode a chat that waits for an answer.

    Raises:
        Findings: of the rules VT6xx.
    """
    _check_text(row, _special(processor))
    if processor.whole is not None:
        return Prompt(0, *whole_question(row, processor, processor.whole), reference="")
    clips = _clips(row, processor)
    text = render_question(row, processor, _texts(clips, processor))
    ids = tuple(tokenize(processor.tokenizer, [text])[0])
    expanded, _, visuals = expand_placeholders(
        ids, ids, row, visuals_of(row, clips, processor), processor
    )
    return Prompt(0, torch.tensor(expanded), visuals, reference="")


def _special(processor: Processor) -> list[str]:
    """Return the tokens that a text must not have: a type's tokenizer may not list its image's."""
    special: list[str] = processor.tokenizer.all_special_tokens
    if processor.whole is None:
        return special
    marks = (one for one in (processor.ids.image, processor.ids.video) if one != NO_TOKEN)
    return [*dict.fromkeys((*special, *processor.tokenizer.convert_ids_to_tokens(list(marks))))]


def _check_row(row: Row, special: Sequence[str], processor: Processor, settings: Data) -> None:
    if settings.root is not None:
        check_root(row, settings.root)
    _check_text(row, special, settings.max_text_bytes)
    if row.videos and processor.whole is not None:
        message = f"{row.id} has a video, and {processor.family.facts.name} is trained on images"
        raise refuse("video-not-trained", message, row.origin)


def _check_text(row: Row, special: Sequence[str], most_bytes: int = MOST_TEXT_BYTES) -> None:
    texts = all_texts(row)
    if sum(map(len, texts)) * 4 > most_bytes and (size := _bytes(texts)) > most_bytes:
        raise refuse(
            "too-much-text",
            f"{row.id} has {size:,} bytes of text; data.max_text_bytes is {most_bytes:,}",
            row.origin,
            parameter="data.max_text_bytes",
        )
    if found := control_tokens_in(texts, special):
        raise refuse(
            "control-token-in-text", f"{row.id}: the text contains {', '.join(found)}", row.origin
        )


def _bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _clips(row: Row, processor: Processor) -> list[Clip]:
    return [open_clip(row, video, processor.video, processor.pictures) for video in row.videos]


def _texts(clips: Sequence[Clip], processor: Processor) -> list[str]:
    return [
        processor.family.video_text(
            processor.names, clip.indices, clip.rate, processor.video.frames_per_patch
        )
        for clip in clips
    ]


def _truncate(
    row: Row, ids: list[int], labels: list[int], limit: int, settings: Data, processor: Processor
) -> tuple[list[int], list[int]]:
    length = f"{row.id} has {len(ids)} tokens; data.max_length is {limit}"
    if settings.on_overlong != "truncate":
        raise refuse("overlong-row", length, row.origin, parameter="data.max_length")
    for token, kind in ((processor.ids.image, "image"), (processor.ids.video, "video")):
        if token in ids[limit:]:
            raise refuse(
                "answer-cut-off",
                f"{length}, which cuts off {kind} tokens",
                row.origin,
                parameter="data.max_length",
            )
    if all(label == IGNORED for label in labels[:limit]):
        raise refuse(
            "answer-cut-off",
            f"{length}, which leaves nothing of its answers",
            row.origin,
            parameter="data.max_length",
        )
    return ids[:limit], labels[:limit]


__all__ = [
    "Chat",
    "Prompt",
    "Sample",
    "encode_prompt",
    "encode_question",
    "encode_row",
    "encode_rows",
]
