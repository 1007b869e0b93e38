"""Rows of ms-swift: `messages`, or `query` and `response`, or `conversation` of pairs.

A message of `"loss": false` is not learnt, and `loss_scale` may be 0 or 1. `images` are paths, or
`{"bytes", "path"}`; each `<image>` takes the next one. A text `system` is the first message.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vtool.data.chats import (
    VISUALS,
    ColumnsReader,
    exchanges,
    not_for_training,
    text,
    tools,
    visuals,
)
from vtool.data.messages_layout import Malformed
from vtool.data.row import shown_value

_READ = ("messages", "query", "response", "history", "conversation", "system", "tools", *VISUALS)
_OBJECTS = (
    "the row has boxes (objects), which each model writes in its own way: in pixels of the resized"
    " image, or in thousandths"
)
_CALL = "a call of a tool as text: its layout is the chat template's. Write tool_calls instead"


class Swift(ColumnsReader):
    """Rows of one file or folder."""

    format = "swift"
    reads = _READ
    words = "ms-swift rows"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        messages, pairs = record.get("messages"), record.get("conversation")
        if isinstance(messages, list) and (
            record.get("objects")
            or any(
                isinstance(message, Mapping) and {"loss", "loss_scale"} & message.keys()
                for message in messages
            )
        ):
            return True
        first = pairs[0] if isinstance(pairs, list) and pairs else None
        of_pairs = isinstance(first, Mapping) and {"human", "assistant"} <= first.keys()
        return of_pairs or {"query", "response"} <= record.keys()

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        if record.get("objects"):
            help = (
                "write the boxes into the text as the model that is trained takes them;"
                " data.coordinates rescales them there"
            )
            raise not_for_training(malformed, _OBJECTS, help)
        shapes = [key for key in ("messages", "response", "conversation") if record.get(key)]
        if not shapes and "response" in record:  # null, or empty
            shapes = ["response"]
        if len(shapes) != 1:
            what = " and ".join(f'"{key}"' for key in shapes) or "none of them"
            raise malformed(
                f'a row has one of "messages", "response" and "conversation"; here it has {what}'
            )
        made = {
            "messages": lambda: _messages(record, malformed),
            "response": lambda: _answered(record, malformed),
            "conversation": lambda: _pairs(record, malformed),
        }[shapes[0]]()
        return {"messages": [*made], **visuals(record, malformed), **tools(record, malformed)}


def _messages(record: Mapping[str, Any], malformed: Malformed) -> Iterator[Any]:
    messages = record["messages"]
    if not isinstance(messages, list):
        raise malformed(f'"messages" must be a list; here it is {shown_value(messages)}')
    if stray := [key for key in ("query", "history") if record.get(key)]:
        raise malformed(f'the row has both "messages" and "{stray[0]}"')
    if record.get("system"):
        if any(isinstance(each, Mapping) and each.get("role") == "system" for each in messages):
            raise malformed('the row has "system" next to a message of the system')
        yield {"role": "system", "content": text(record["system"], "system", malformed)}
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role in ("tool_call", "tool_response"):
            raise malformed(f"turn {number} has the role {role}: it is {_CALL}")
        yield message


def _answered(record: Mapping[str, Any], malformed: Malformed) -> Iterator[Any]:
    pairs = record.get("history") or []
    yield from exchanges(pairs, "history", malformed, record.get("system"))
    question = text(record.get("query"), "query", malformed)
    yield from exchanges([(question, record["response"])], "response", malformed)


def _pairs(record: Mapping[str, Any], malformed: Malformed) -> Iterator[Any]:
    if stray := [key for key in ("query", "history") if record.get(key)]:
        raise malformed(f'the row has both "conversation" and "{stray[0]}"')
    given = record["conversation"]
    keys = {"human", "assistant"}
    for each in given if isinstance(given, list) else [given]:
        if not isinstance(each, Mapping) or each.keys() != keys:
            what = f'"conversation" has {shown_value(each)}'
            raise malformed(f'{what}, and an entry is of "human" and "assistant"')
    pairs = [(each["human"], each["assistant"]) for each in given]
    yield from exchanges(pairs, "conversation", malformed, record.get("system"))
