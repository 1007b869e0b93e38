"""Rendering of chats: token ids, and labels of the answers and the token that ends each."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vtool.data.row import Row, refuse, shown
from vtool.data.template_limits import LARGEST, LimitedTemplate, TooCostly
from vtool.diagnostics import Findings
from vtool.models.processor import Processor

IGNORED = -100
# Keys of a message that carry something to be learnt or seen, and that many chat templates know
# nothing of.
_OFFERED = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Turn:
    """One supervised assistant turn."""

    message: int
    """The place among the row's messages, from 0."""
    opening: str
    """The end of the generation prompt, such as `<|im_start|>assistant`, or an opened `<think>`."""
    text: str
    """The supervised text: the answer as the template writes it, and the end token."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat as token ids: one for each image and for each run of a video's features."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    turns: tuple[Turn, ...]
    prompt: int
    """The number of ids before the last supervised answer."""
    answer: int
    """Tokens of that answer, without its end token."""


@LimitedTemplate()
def render_chat(row: Row, processor: Processor, videos: Sequence[str] = ()) -> Chat:
    """Tokenize a chat, each answer by itself.

    The prompt before an answer then has the very tokens of inference. Where an answer begins is
    read off the chat template: the chat so far, rendered as a prompt, must be how the whole chat's
    text begins. An assistant's turn of weight 0 is context like a user's.

    Args:
        videos: what the processor writes in the place of each video's token (`Family.video_text`).

    Raises:
        Findings: `no-assistant-turn`, `malformed-messages`, `ignored-by-template`,
            `unstable-template`, `end-token-unsupervised`, `image-token-mismatch`.
    """
    tokenizer, end = processor.tokenizer, processor.ids.end
    end_text = tokenizer.convert_ids_to_tokens(end)
    if row.messages[0]["role"] == "assistant":
        raise refuse(
            "malformed-messages",
            f"{row.id}: the first turn is the assistant's, so that it answers nothing",
            row.origin,
        )
    whole = _render(row, len(row.messages), processor, prompt=False)
    _check_nothing_is_lost(row, whole, processor)
    put = _Videos(row, whole, videos, processor)
    ids: list[int] = []
    labels: list[int] = []
    turns: list[Turn] = []
    done = prompt = answered = 0
    for place in row.supervised():
        before = _render(row, place, processor, prompt=True)
        after = (
            whole
            if place + 1 == len(row.messages)
            else _render(row, place + 1, processor, prompt=False)
        )
        if not whole.startswith(before) or not whole.startswith(after):
            raise refuse(
                "unstable-template",
                f"{row.id}: the template renders turn {place + 1} differently within the whole"
                " chat",
                row.origin,
            )
        answer, found, _ = after[len(before) :].rpartition(end_text)
        if not found:
            raise refuse(
                "end-token-unsupervised",
                f"{row.id}: the template does not close turn {place + 1} with {end_text}",
                row.origin,
            )
        if not answer.strip():
            raise refuse(
                "no-assistant-turn",
                f"{row.id}: the assistant's turn {place + 1} is empty",
                row.origin,
            )
        prompt_ids = _tokenize(tokenizer, put(whole[done : len(before)]))
        answer_ids = [*_tokenize(tokenizer, answer), end]
        prompt, answered = len(ids) + len(prompt_ids), len(answer_ids) - 1
        ids += prompt_ids + answer_ids
        labels += [IGNORED] * len(prompt_ids) + answer_ids
        turns.append(Turn(place, before.rpartition(end_text)[2], answer + end_text))
        done = len(before) + len(answer) + len(end_text)
    if not turns:
        there = any(message["role"] == "assistant" for message in row.messages)
        raise refuse(
            "no-assistant-turn",
            f"{row.id}: {'every' if there else 'there is no'} assistant"
            f" turn{' has weight 0' * there}",
            row.origin,
        )
    rest = _tokenize(tokenizer, put(whole[done:]))
    return Chat((*ids, *rest), (*labels, *([IGNORED] * len(rest))), tuple(turns), prompt, answered)


def render_prompt(
    row: Row, processor: Processor, videos: Sequence[str] = ()
) -> tuple[tuple[int, ...], str]:
    """Return the token ids before a chat's last supervised answer, as in training, and its text."""
    chat = render_chat(row, processor, videos)
    return chat.ids[: chat.prompt], chat.turns[-1].text.removesuffix(
        processor.tokenizer.convert_ids_to_tokens(processor.ids.end)
    )


@LimitedTemplate()
def render_question(row: Row, processor: Processor, videos: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the token ids of a chat that waits for an answer."""
    whole = _render(row, len(row.messages), processor, prompt=True)
    return tuple(_tokenize(processor.tokenizer, _Videos(row, whole, videos, processor)(whole)))


def all_texts(row: Row) -> list[str]:
    """Return all that a row has of text: its messages', and its tools and reasoning as JSON."""
    offered = [row.tools, *(message.get(key) for message in row.messages for key in _OFFERED)]
    return [*row.texts(), *(json.dumps(value, ensure_ascii=False) for value in offered if value)]


def control_tokens_in(row: Row, processor: Processor) -> list[str]:
    """Return the control tokens that a row's own text, tools or reasoning contains."""
    texts = all_texts(row)
    return [
        token
        for token in processor.tokenizer.all_special_tokens
        if any(token in text for text in texts)
    ]


class _Videos:
    """A function that puts each video's text in the place of its token before tokenizing.

    transformers' processors do so too: times are then cut into the same tokens.
    """

    def __init__(self, row: Row, whole: str, videos: Sequence[str], processor: Processor) -> None:
        self.token = processor.tokenizer.convert_ids_to_tokens(processor.ids.video)
        self.remaining = iter(videos)
        if (found := whole.count(self.token)) != len(videos):
            message = (
                f"{row.id}: the chat template wrote {found} video tokens for {len(videos)} videos"
            )
            raise refuse("image-token-mismatch", message, row.origin)

    def __call__(self, text: str) -> str:
        first, *rest = text.split(self.token)
        return first + "".join(next(self.remaining) + piece for piece in rest)


def _check_nothing_is_lost(row: Row, whole: str, processor: Processor) -> None:
    """Refuse a row with content, beside text, that the template leaves out."""
    for place, key, without in _offered(row):
        try:
            same = _render(without, len(row.messages), processor, prompt=False) == whole
        except Findings as found:  # the template cannot do without it
            if found.diagnostics[0].rule == "template-too-costly":
                raise
            continue
        if same:
            where = f"{key} of turn {place + 1}" if place is not None else key
            raise refuse(
                "ignored-by-template", f"{row.id}: the chat template leaves out {where}", row.origin
            )
    for place, message in enumerate(row.messages):
        content = message["content"]
        if content and isinstance(content, list) and str(content) in whole:
            text = (
                f"{row.id}: the chat template takes text only: it writes the parts of turn"
                f" {place + 1} as a list of Python"
            )
            help = "write its content as one text, or use a template that takes parts"
            raise refuse("malformed-messages", text, row.origin, help=help)


def _offered(row: Row) -> Iterator[tuple[int | None, str, Row]]:
    """Yield whatever a row offers beside text: the message's place, the key, the row without it."""
    if row.tools:
        yield None, "tools", replace(row, tools=None)
    for place, message in enumerate(row.messages):
        for key in _OFFERED:
            if message.get(key):
                less = {name: value for name, value in message.items() if name != key}
                yield (
                    place,
                    key,
                    replace(
                        row, messages=[*row.messages[:place], less, *row.messages[place + 1 :]]
                    ),
                )


def _render(row: Row, turns: int, processor: Processor, *, prompt: bool) -> str:
    try:
        text: str = processor.tokenizer.apply_chat_template(
            row.messages[:turns], tools=row.tools, tokenize=False, add_generation_prompt=prompt
        )
        if len(text) > LARGEST:
            raise TooCostly(f"it writes {len(text):,} characters")
    except TooCostly as error:
        raise refuse(
            "template-too-costly", f"{row.id}: the chat template is stopped: {error}", row.origin
        ) from error
    except Exception as error:  # a template is a program, and raises whatever it likes
        raise refuse(
            "malformed-messages",
            f"{row.id}: the chat template refuses these messages: {shown(error)}",
            row.origin,
        ) from error
    return text


def _tokenize(tokenizer: object, text: str) -> list[int]:
    encoded: Sequence[int] = tokenizer(text, add_special_tokens=False).input_ids  # type: ignore[operator]
    return list(encoded)
