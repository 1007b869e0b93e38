"""Renderings of chats by the chat template: of one, or of many by one call."""

from collections.abc import Mapping, Sequence
from typing import Any

from vtool.data.row import Row, refuse, shown_value
from vtool.limited_child import TooCostly
from vtool.models.processor import Processor
from vtool.models.template_limits import CollectedChats

THINKING = "enable_thinking"
"""The column of verl's rows, and the argument that chat templates have for it."""
Renderings = Mapping[tuple[int, bool], str]
"""Texts of one chat, by the number of its first messages and whether an answer is asked for."""
NONE_KNOWN: Renderings = {}
_MOST_TURNS = 32
"""Messages of a chat that is rendered with others: the texts of all its beginnings are kept."""


def render_beginning(
    row: Row, turns: int, processor: Processor, *, prompt: bool, known: Renderings = NONE_KNOWN
) -> str:
    """Return the text of a chat's first messages.

    Args:
        turns: the number of these messages.
        prompt: end it with what asks for an answer.
        known: texts of this chat that are there already.

    Raises:
        Findings: `template-too-costly`, `malformed-messages`.
    """
    if (there := known.get((turns, prompt))) is not None:
        return there
    try:
        # as in `render_rows`: a template may ask if there is a list, be it empty
        own = {} if row.thinking is None else {THINKING: row.thinking}
        text: str = _apply(processor, row.messages[:turns], prompt, row.tools or None, **own)
    except TooCostly as error:
        raise refuse(
            "template-too-costly", f"{row.id}: the chat template is stopped: {error}", row.origin
        ) from error
    except MemoryError:  # of the machine, not of the row
        raise
    except Exception as error:  # a template is a program, and raises whatever it likes
        raise refuse(
            "malformed-messages",
            f"{row.id}: the chat template refuses these messages: {shown_value(error)}",
            row.origin,
        ) from error
    return text


def render_rows(rows: Sequence[Row], processor: Processor) -> list[Renderings]:
    """Return the texts of each chat that its labels are made from, rendered together.

    Nothing is known of chats of which one cannot be rendered: each is rendered by itself then,
    and `render` says what is wrong with which.
    """
    known: list[dict[tuple[int, bool], str]] = [{} for _ in rows]
    wanted = [
        (place, turns, prompt)
        for prompt in (False, True)
        for place, row in enumerate(rows)
        if not row.tools and row.thinking is None and len(row.messages) <= _MOST_TURNS
        for turns in _beginnings(row, prompt=prompt)
    ]
    if not wanted:
        return list(known)
    try:
        with CollectedChats() as asked:
            for prompt in (False, True):
                chats = [
                    rows[place].messages[:turns] for place, turns, its in wanted if its == prompt
                ]
                if chats:
                    _apply(processor, chats, prompt, None, many=True)
        texts = asked.texts()
    except Exception:  # `render` finds out whose it is
        return list(known)
    for (place, turns, prompt), text in zip(wanted, texts, strict=True):
        known[place][turns, prompt] = text
    return list(known)


def begins_with_answer(row: Row) -> bool:
    """Return whether a chat begins with an answer, so that there is no prompt before it."""
    return bool(row.messages[0]["role"] == "assistant")


def _beginnings(row: Row, *, prompt: bool) -> list[int]:
    """Return the numbers of messages whose text is asked for, with or without a prompt."""
    if begins_with_answer(row):
        return []
    answers = list(row.supervised())
    return answers if prompt else sorted({len(row.messages), *(place + 1 for place in answers)})


def _apply(
    processor: Processor,
    chats: Any,
    prompt: bool,
    tools: Any,
    *,
    many: bool = False,
    **arguments: Any,
) -> Any:
    shaped = processor.form.shaped
    return processor.tokenizer.apply_chat_template(
        [shaped(chat) for chat in chats] if many else shaped(chats),
        tools=tools,
        tokenize=False,
        add_generation_prompt=prompt,
        **arguments,
    )
