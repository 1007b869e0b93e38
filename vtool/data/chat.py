"""Rendering of chats: token ids, and labels of the answers and the token that ends each."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vtool.data.keys import CARRIERS, WRITE_TOOLS
from vtool.data.renderings import NONE_KNOWN, Renderings, begins_with_answer, render_beginning
from vtool.data.row import Row, refuse, shown_value, texts_of
from vtool.data.tokens import tokenize
from vtool.diagnostics import Findings
from vtool.families.tokens import CONTENT_TOKENS
from vtool.models.chat_template import THOUGHT, THOUGHT_KEYS, has_two_thoughts, thought_of
from vtool.models.processor import Processor
from vtool.models.template_limits import LimitedTemplate

IGNORED = -100
# Keys of a message that carry something to be learnt or seen, and that many chat templates know
# nothing of.
_OFFERED = ("tool_calls", *THOUGHT_KEYS, *CARRIERS)
_WITHIN_A_LINE = re.compile(r"</think>[^\S\n]*[^\s<]")


@dataclass(frozen=True, slots=True)
class Turn:
    """One supervised assistant turn."""

    message: int
    """The place among the row's messages, from 0."""
    opening: str
    """The end of the generation prompt, such as `<|im_start|>assistant`, or an opened `<think>`."""
    text: str
    """The supervised text: the answer as the template writes it, and the end token."""
    end: str = ""
    """The end token."""


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


@dataclass(frozen=True, slots=True)
class ChatTexts:
    """A chat as texts, which are tokenized one by one."""

    texts: tuple[str, ...]
    """By turns what is before an answer and the answer, without its end token; the rest is last."""
    turns: tuple[Turn, ...]
    ends: tuple[int, ...]
    """The id of the token that ends each answer."""


def render_chat(row: Row, processor: Processor, videos: Sequence[str] = ()) -> Chat:
    """Tokenize a chat, each answer by itself.

    The prompt before an answer then has the very tokens of inference.

    Args:
        videos: what the processor writes in the place of each video's token (`Family.video_text`).

    Raises:
        Findings: as `split_chat`.
    """
    split = split_chat(row, processor, videos)
    return label_chat(split, tokenize(processor.tokenizer, split.texts))


@LimitedTemplate()
def split_chat(
    row: Row, processor: Processor, videos: Sequence[str] = (), known: Renderings = NONE_KNOWN
) -> ChatTexts:
    """Render a chat, and split it where its answers begin and end.

    Where an answer begins is read off the chat template: the chat so far, rendered as a prompt,
    must be how the whole chat's text begins. An assistant's turn of weight 0 is context like a
    user's.

    Args:
        videos: what the processor writes in the place of each video's token (`Family.video_text`).
        known: texts of this chat that the template has written already.

    Raises:
        Findings: `no-assistant-turn`, `malformed-messages`, `ignored-by-template`,
            `unstable-template`, `end-token-unsupervised`, `image-token-mismatch`.
    """
    stops = processor.stop_texts
    if begins_with_answer(row):
        raise refuse(
            "malformed-messages",
            f"{row.id}: the first turn is the assistant's, so that it answers nothing",
            row.origin,
        )
    whole = render_beginning(row, len(row.messages), processor, prompt=False, known=known)
    _check_nothing_is_lost(row, whole, processor)
    put = _Videos(row, whole, videos, processor)
    texts: list[str] = []
    turns: list[Turn] = []
    done = 0
    for place in row.supervised():
        before = render_beginning(row, place, processor, prompt=True, known=known)
        after = (
            whole
            if place + 1 == len(row.messages)
            else render_beginning(row, place + 1, processor, prompt=False, known=known)
        )
        if not after.startswith(before):
            raise _prompt_differs(row, place, before, after)
        if not whole.startswith(after):
            raise refuse(
                "unstable-template",
                f"{row.id}: the template renders turn {place + 1} differently within the whole"
                " chat",
                row.origin,
                help="data.turns=each: every answer is the last turn of its own sample",
            )
        if processor.form.thought and (why := _odd_thought(row.messages[place])):
            message = f"{row.id}: the thought of turn {place + 1} {why}"
            raise refuse("malformed-messages", message, row.origin)
        answer, end = _ended(
            after[len(before) :], whole[len(after) :], row.messages[place], processor
        )
        if not end:
            raise refuse(
                "end-token-unsupervised",
                f"{row.id}: {_not_closed(after[len(before) :], place, processor)}",
                row.origin,
            )
        if not answer.strip() or _says_nothing(row.messages[place]):
            raise refuse(
                "no-assistant-turn",
                f"{row.id}: the assistant's turn {place + 1} is empty",
                row.origin,
            )
        texts += [put(whole[done : len(before)]), answer]
        opening = before[max(_end_of_last(each, before) for each in stops) :]
        turns.append(Turn(place, opening, answer + end, end))
        done = len(before) + len(answer) + len(end)
    if not turns:
        there = any(message["role"] == "assistant" for message in row.messages)
        raise refuse(
            "no-assistant-turn",
            f"{row.id}: {'every' if there else 'there is no'} assistant"
            f" turn{' has weight 0' * there}",
            row.origin,
        )
    ends = tuple(stops[turn.end] for turn in turns)
    return ChatTexts((*texts, put(whole[done:])), tuple(turns), ends)


def _prompt_differs(row: Row, place: int, prompt: str, written: str) -> Findings:
    """Return the finding for a turn that does not begin as the prompt of inference does."""
    pairs = enumerate(zip(prompt, written, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), 0)
    begin = max(0, at - 20)
    help = "give the template the arguments that inference has: data.template_arguments"
    if thought_of(row.messages[place]):
        help = (
            "the answer has a thought, and the prompt says that there is none: leave"
            " enable_thinking=false out of data.template_arguments, or remove the thought"
        )
    return refuse(
        "prompt-differs",
        f"{row.id}: before turn {place + 1} inference's prompt has"
        f" {shown_value(prompt[begin:])}, and the chat has {shown_value(written[begin : at + 40])}",
        row.origin,
        parameter="data.template_arguments",
        help=help,
    )


def _odd_thought(message: Mapping[str, Any]) -> str | None:
    """Return the problem with the marks of a thought, in words; None where there is none."""
    text = "".join(texts_of(message)).lstrip()
    if text.startswith("<think>") and "</think>" not in text:
        return "is never closed: there is <think>, and no </think>"
    if has_two_thoughts(message):
        return "is there twice: at a key of the message, and in its content"
    if (first := THOUGHT.match(text)) and text.startswith("<think>", first.end()):
        return "is there twice: its content begins with two of <think>…</think>"
    for key in THOUGHT_KEYS:
        own = str(message.get(key) or "")
        if own.lstrip().startswith("<think>") or "</think>" in own:
            return f"has <think> or </think> in {key}, where the template writes them: remove them"
    if "<think>" not in text and _WITHIN_A_LINE.search(text):
        return "would be the text before </think>, which is within a line and has no <think>"
    return None


def _says_nothing(message: Mapping[str, Any]) -> bool:
    return not (
        any(text.strip() for text in texts_of(message))
        or any(message.get(key) for key in _OFFERED)
        or any(
            part.get("type") != "text"
            for part in message["content"] or ()
            if isinstance(part, dict)
        )
    )


def _end_of_last(token: str, text: str) -> int:
    found = text.rfind(token)
    return found + len(token) if found >= 0 else 0


def _ended(
    written: str, behind: str, message: Mapping[str, Any], processor: Processor
) -> tuple[str, str]:
    """Return an answer, and the token at which inference stops behind it; "" where there is none.

    Args:
        written: what the template writes between the prompt and the end of the answer's turn.
        behind: what it writes then, in which the next role's token may be the end (GLM's).
        message: the turn's.
    """
    stops = processor.stop_texts
    found = [(at, end) for end in stops if (at := written.rfind(end)) >= 0]
    if found:
        at, end = max(found, key=lambda one: (one[0], len(one[1])))
        return written[:at], end
    if not processor.form.closed_by_next:
        return written, ""
    end = next((end for end in stops if behind.startswith(end)), "")
    if not behind:
        form = processor.form
        closing = form.closing_call if message.get("tool_calls") else form.closing
        end = closing if closing in stops else ""
    return written, end


def _not_closed(written: str, place: int, processor: Processor) -> str:
    """Return why a turn that the template has written does not end where inference stops."""
    stops, closing = " or ".join(processor.stop_texts), processor.form.closing
    what = f"the template does not close turn {place + 1} with {stops}, at which inference stops"
    if closing and closing not in processor.stop_texts:
        token = processor.tokenizer.convert_tokens_to_ids(closing)
        what = (
            f"the template closes turn {place + 1} with {closing}, at which inference does not stop"
            f" (it stops at {stops}): add {token} to eos_token_id in generation_config.json"
        )
    return what


def label_chat(split: ChatTexts, tokens: Sequence[Sequence[int]]) -> Chat:
    """Return a chat of which the answers and the token that ends each are labels.

    Args:
        tokens: the token ids of each text of the chat.
    """
    ids: list[int] = []
    labels: list[int] = []
    prompt = answered = 0
    *pairs, rest = tokens
    for asked, answer, end in zip(pairs[::2], pairs[1::2], split.ends, strict=True):
        ids += asked
        prompt, answered = len(ids), len(answer)
        ids += [*answer, end]
        labels += [IGNORED] * len(asked)
        labels += ids[prompt:]
    return Chat((*ids, *rest), (*labels, *([IGNORED] * len(rest))), split.turns, prompt, answered)


def render_prompt(
    row: Row, processor: Processor, videos: Sequence[str] = ()
) -> tuple[tuple[int, ...], str]:
    """Return the token ids before a chat's last supervised answer, as in training, and its text."""
    chat = render_chat(row, processor, videos)
    return chat.ids[: chat.prompt], chat.turns[-1].text.removesuffix(chat.turns[-1].end)


@LimitedTemplate()
def render_question(row: Row, processor: Processor, videos: Sequence[str] = ()) -> str:
    """Return the text of a chat that waits for an answer."""
    whole = render_beginning(row, len(row.messages), processor, prompt=True)
    return _Videos(row, whole, videos, processor)(whole)


def all_texts(row: Row) -> list[str]:
    """Return every text of a row: of its messages, and its tools and reasoning as JSON."""
    offered = [row.tools, *(message.get(key) for message in row.messages for key in _OFFERED)]
    return [*row.texts(), *(json.dumps(value, ensure_ascii=False) for value in offered if value)]


def control_tokens_in(texts: Sequence[str], special: Sequence[str]) -> list[str]:
    """Return a tokenizer's special tokens that occur in texts of rows, but for those of content."""
    control = [token for token in special if token not in CONTENT_TOKENS]
    return [token for token in control if any(token in text for text in texts)]


class _Videos:
    """A function that puts each video's text in the place of its token before tokenizing.

    transformers' processors do so too: times are then cut into the same tokens.
    """

    def __init__(self, row: Row, whole: str, videos: Sequence[str], processor: Processor) -> None:
        self.token = "" if processor.whole else processor.names.video  # else they are refused
        self.remaining = iter(videos)
        found = whole.count(self.token) if self.token else 0
        if found != len(videos):
            message = (
                f"{row.id}: the chat template wrote {found} video tokens for {len(videos)} videos"
            )
            raise refuse("image-token-mismatch", message, row.origin)

    def __call__(self, text: str) -> str:
        if not self.token:
            return text
        first, *rest = text.split(self.token)
        return first + "".join(next(self.remaining) + piece for piece in rest)


def _check_nothing_is_lost(row: Row, whole: str, processor: Processor) -> None:
    """Refuse a row with content, in addition to text, that the template leaves out."""
    lost: list[str] = []
    help, learnt = None, set(row.supervised())
    for place, key, without in _offered(row):
        if key in THOUGHT_KEYS and place not in learnt:  # as templates do at inference
            continue
        try:
            same = render_beginning(without, len(row.messages), processor, prompt=False) == whole
        except Findings as found:  # the template cannot do without it
            if found.diagnostics[0].rule == "template-too-costly":
                raise
            continue
        if same:
            where = f"{key} of turn {place + 1}" if place is not None else key
            if place is not None and key in CARRIERS:
                where, help = f"{where} (not read: write {CARRIERS[key]})", WRITE_TOOLS
            lost.append(where)
    if lost:
        what = f"{row.id}: the chat template leaves out {', '.join(lost)}"
        raise refuse("ignored-by-template", what, row.origin, help=help)
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
    """Yield each thing a row has besides text: the message's place, the key, the row without it."""
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
