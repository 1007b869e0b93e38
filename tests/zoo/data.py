"""Rows and labels: what goes wrong between a chat and the tensors of a sample."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tests.zoo.defect import Defect
from tests.zoo.looks import Audit, HeldBack, Train
from vtool.data.chat import IGNORED, Chat

LABEL = "vtool.data.encode:label_chat"
ROWS = Audit()
# The right code refuses such rows before the first step.
CUT = Train(
    ("data.max_length=15", "data.on_overlong=truncate", "data.max_dropped_rows=1"),
    expected=("answer-cut-off", "too-many-dropped-rows"),
)


def relabelled(change: Any) -> Any:
    """Return a `label_chat` that gives the same chat other labels: `change(chat, split)`."""

    def wrong(real: Any) -> Any:
        def label(split: Any, tokens: Any) -> Chat:
            chat: Chat = real(split, tokens)
            return replace(chat, labels=tuple(change(chat, split)))

        return label

    return wrong


def without_end(chat: Chat, split: Any) -> list[int]:
    return [IGNORED if label in split.ends else label for label in chat.labels]


def later(chat: Chat, _: Any) -> list[int]:
    """Supervised from the second token of each answer to the one after its last."""
    supervised = [False, *(label != IGNORED for label in chat.labels[:-1])]
    return [token if on else IGNORED for token, on in zip(chat.ids, supervised, strict=True)]


def to_the_end(chat: Chat, _: Any) -> list[int]:
    """Everything after the first answer has begun."""
    first = next(place for place, label in enumerate(chat.labels) if label != IGNORED)
    return [IGNORED] * first + list(chat.ids[first:])


def last_turn(chat: Chat, _: Any) -> list[int]:
    return [IGNORED] * chat.prompt + list(chat.labels[chat.prompt :])


def all_of_it(chat: Chat, _: Any) -> list[int]:
    return list(chat.ids)


def none_of_it(chat: Chat, _: Any) -> list[int]:
    return [IGNORED] * len(chat.labels)


def first_image(real: Any) -> Any:
    def visuals(row: Any, clips: Any, processor: Any, **more: Any) -> Any:
        return real(replace(row, images=row.images[:1]), clips, processor, **more)

    return visuals


def not_merged(real: Any) -> Any:
    def image(row: Any, given: Any, processor: Any, **more: Any) -> Any:
        made = real(row, given, processor, **more)
        return replace(made, runs=(prod(made.grid),))

    return image


def cut_without_looking(_: Any) -> Any:
    return lambda row, ids, labels, limit, settings, processor: (ids[:limit], labels[:limit])


def placeholder_left(real: Any) -> Any:
    def expand(
        ids: Any, labels: Any, row: Any, visuals: Any, processor: Any, *, whole: bool = True
    ) -> Any:
        return list(ids), list(labels), real(ids, labels, row, visuals, processor, whole=whole)[2]

    return expand


def forgets_thoughts(real: Any) -> Any:
    """Qwen3's own template does this: text before </think> is kept in the last turn alone."""

    def template(names: Any) -> str:
        last = "{% for message in messages %}{% set whole = message['content'] %}"
        kept = "{% if loop.last %}{{ whole }}{% else %}{{ whole.split('</think>')[-1] }}{% endif %}"
        begin = real(names).replace("{% for message in messages %}", last, 1)
        return str(begin).replace("{{ message['content'] }}", kept, 1)

    return template


def answers_alone(real: Any) -> Any:
    """Keep of each turn only the text behind its reasoning."""
    written, kept = "{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] }}"
    return lambda names: real(names).replace(written, kept, 1)


def cut_at_the_end(_: Any) -> Any:
    return lambda groups, _split, share: np.arange(len(groups)) >= (1 - share) * len(groups)


DEFECTS = (
    Defect(
        "split-by-place",
        "Soup#680",
        "Sources are put together, and their last rows are the test: copies of these are trained"
        " on.",
        "rows-in-two-splits",
        HeldBack("{test: 0.3}"),
        "vtool.data.splits:held_back",
        cut_at_the_end,
    ),
    Defect(
        "end-token-masked",
        "Megatron-Bridge#4265",
        "The token that ends a turn is left out of the labels: the model never learns to stop.",
        "labels-differ-from-answers",
        ROWS,
        LABEL,
        relabelled(without_end),
    ),
    Defect(
        "mask-shifted",
        "verl#3287",
        "The loss mask is one token late: the first token of each answer is not learnt.",
        "labels-differ-from-answers",
        ROWS,
        LABEL,
        relabelled(later),
    ),
    Defect(
        "mask-to-the-end",
        "transformers#47325",
        "An answer's end is not found: all that follows, the user's turns too, is learnt.",
        "labels-differ-from-answers",
        ROWS,
        LABEL,
        relabelled(to_the_end),
    ),
    Defect(
        "prompt-supervised",
        "Megatron-Bridge#3927",
        "Without marks in the template the mask is all ones: the model learns the questions.",
        "labels-differ-from-answers",
        ROWS,
        LABEL,
        relabelled(all_of_it),
    ),
    Defect(
        "mask-all-zero",
        "transformers#44543",
        "With an image in the row nothing is found to supervise, and the mask is all zeros.",
        "labels-differ-from-answers",
        ROWS,
        LABEL,
        relabelled(none_of_it),
    ),
    Defect(
        "turns-masked",
        "axolotl#3098",
        "All before the last answer is taken for the prompt: of several answers one is learnt.",
        "labels-differ-from-answers",
        ROWS,
        LABEL,
        relabelled(last_turn),
    ),
    Defect(
        "thoughts-forgotten",
        "ms-swift#4939",
        "The template takes the thoughts out of all but the last turn: they are not learnt.",
        "unstable-template",
        Audit(("data.turns=all",)),  # `each`, the default there, learns them
        "vtool.models.tokenizer:chat_template",
        forgets_thoughts,
    ),
    Defect(
        "reasoning-left-out",
        "slime#330",
        "The reasoning is in the row, and the template writes the answer behind it alone.",
        "labels-differ-from-answers",
        ROWS,
        "vtool.models.tokenizer:chat_template",
        answers_alone,
        mentions="turn 2 says",
    ),
    Defect(
        "first-image-only",
        "axolotl#2435",
        "Of several images in a row the first one is read, the others are dropped.",
        "image-token-mismatch",
        ROWS,
        "vtool.data.encode:visuals_of",
        first_image,
    ),
    Defect(
        "placeholder-not-expanded",
        "LLaMA-Factory#8226",
        "An image has one placeholder token, whatever it has of features.",
        "image-token-mismatch",
        ROWS,
        "vtool.data.encode:expand_placeholders",
        placeholder_left,
    ),
    Defect(
        "patches-for-tokens",
        "LLaMA-Factory#9166",
        "Patches are counted for image tokens, as if the tower did not merge them.",
        "image-token-mismatch",
        ROWS,
        "vtool.data.visuals:_cut_image",
        not_merged,
    ),
    Defect(
        "image-cut-in-two",
        "LLaMA-Factory#5968",
        "A row is truncated in the middle of an image: it has fewer tokens than features.",
        "image-token-mismatch",
        Audit(
            ("data.max_length=10", "data.on_overlong=truncate"),
            ("answer-cut-off", "too-many-dropped-rows", "end-token-unsupervised"),
        ),
        "vtool.data.encode:_truncate",
        cut_without_looking,
    ),
    Defect(
        "answer-cut-off",
        "trl#6668",
        "max_length takes all answers away: loss 0, gradient 0, and the run continues.",
        "no-supervised-tokens",
        CUT,
        "vtool.data.encode:_truncate",
        cut_without_looking,
    ),
)
