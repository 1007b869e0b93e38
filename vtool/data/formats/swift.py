"""Rows of ms-swift: `messages`, or `query` and `response`, or `conversation` of pairs.

A message of `"loss": false` is not learnt, and `loss_scale` may be 0 or 1. `images` are paths, or
`{"bytes", "path"}`; each `<image>` takes the next one. A text `system` is the first message. Names
and boxes of `objects` are written where the tags `<ref-object>` and `<bbox>` are.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from vtool.data.chats import (
    VISUALS,
    ColumnsReader,
    exchanges,
    text,
    tools,
    visuals,
)
from vtool.data.messages_layout import Malformed
from vtool.data.row import refuse, shown_value
from vtool.words import plural

_READ = (
    "objects",
    "messages",
    "query",
    "response",
    "history",
    "conversation",
    "system",
    "tools",
    *VISUALS,
)
_OF_OBJECTS = ("ref", "bbox", "bbox_type", "image_id", "width", "height")
_TAGS = re.compile("<ref-object>|<bbox>")
_WRITE_OBJECTS = (
    'write "objects": {"ref": ["the cat"], "bbox": [[10, 20, 110, 220]]}, and a tag <ref-object> or'
    " <bbox> in the text for each; where nothing of it is to be learnt: ignore: [objects]"
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
        messages, objects = list(made), record.get("objects")
        more: dict[str, Any] = {}
        if objects and "objects" not in self.ignore:
            messages, more = _with_objects(messages, objects, malformed)
        shown = {**visuals(record, malformed), **tools(record, malformed)}
        return {"messages": messages, **shown, **more}


def _with_objects(
    messages: list[Any], objects: Any, malformed: Malformed
) -> tuple[list[Any], dict[str, Any]]:
    """Return messages with names and boxes in the place of their tags, and what is not written.

    They are written for Qwen's models, as ms-swift does (`replace_ref` and `replace_bbox` of its
    Qwen2VLTemplate). Numbers stay in the unit of the row: `data.coordinates` rescales them. Without
    a tag nothing is written.
    """
    if not isinstance(objects, Mapping):
        what = f'"objects" must be an object; here it is {shown_value(objects)}'
        raise malformed(what, _WRITE_OBJECTS)
    if (unit := objects.get("bbox_type")) not in (None, "", "real", "norm1"):
        what = f'"bbox_type" of "objects" is {shown_value(unit)}'
        raise malformed(
            what, 'ms-swift knows "real", which is pixels, and "norm1", which is 0 to 1'
        )
    names, boxes = objects.get("ref") or [], objects.get("bbox") or []
    texts = {
        "<ref-object>": [f"<|object_ref_start|>{name}<|object_ref_end|>" for name in names],
        "<bbox>": [_written(box, malformed) for box in boxes],
    }
    taken = Counter[str]()

    def write(tag: re.Match[str]) -> str:
        place, own = taken[tag[0]], texts[tag[0]]
        taken[tag[0]] += 1
        return own[place] if place < len(own) else tag[0]

    made = [_with_texts(message, partial(_TAGS.sub, write)) for message in messages]
    if not taken:
        return messages, {"objects": objects}
    for (tag, own), key in zip(texts.items(), ("ref", "bbox"), strict=True):
        if taken[tag] != len(own):
            entries = plural(len(own), "entry", "entries")
            what = f'{plural(taken[tag], "tag")} {tag}, but {entries} in "{key}" of "objects"'
            message = f"{malformed.name}: {what}"
            raise refuse("placeholder-mismatch", message, malformed.origin, help=_WRITE_OBJECTS)
    rest = {f"objects.{key}": objects[key] for key in objects if key not in _OF_OBJECTS}
    return made, rest


def _written(box: Any, malformed: Malformed) -> str:
    numbers = isinstance(box, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in box
    )
    if not numbers or len(box) not in (2, 4):
        what = f'"bbox" of "objects" has {shown_value(box)}'
        raise malformed(f"{what}, which is no box [x1, y1, x2, y2] and no point [x, y]")
    points = zip(box[::2], box[1::2], strict=True)
    return f"<|box_start|>{','.join(f'({_plain(x)},{_plain(y)})' for x, y in points)}<|box_end|>"


def _plain(number: float) -> str:
    """Return a number without an exponent, and without zeros that say nothing."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def _with_texts(message: Any, change: Callable[[str], str]) -> Any:
    """Return a message with its texts changed."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return {**message, "content": change(content)}
    if not isinstance(content, list):
        return message
    parts = [
        {**part, "text": change(part["text"])}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]
    return {**message, "content": parts}


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
