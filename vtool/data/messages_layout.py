"""The `messages` layout: from a JSON object to a row. What is not understood is refused by name."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.data.keys import (
    CARRIERS,
    JUDGEMENTS,
    KEYS_READ,
    OTHER_TASKS,
    WRITE_TOOLS,
    is_known,
    is_said,
    masks_row,
    slip,
)
from vtool.data.media import NOT_OF_VIDEOS, image_of_source, locate_image, locate_video
from vtool.data.message_keys import NO_SOUND, WRITE_WEIGHT, MessageKeys
from vtool.data.missing import is_empty, is_nan, missing_in_words
from vtool.data.row import Remark, Row, RowVideo, refuse, shown_value, texts_of
from vtool.data.urls import UrlCache
from vtool.diagnostics import Findings, Origin
from vtool.words import plural

_ROLES = ("system", "user", "assistant", "tool")
TAG = "<image>"
VIDEO_TAG = "<video>"
Place = Callable[[str, Any, Mapping[str, Any]], dict[str, str]]
"""A function that returns the template's part of an image or a video.

Given `image` or `video`, its location, and what else its part says.
"""

_EXAMPLE = (
    'write "messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'
)
NO_ANSWER = "write the answer, or remove the row: there is nothing to learn from it"
# Keys that carry something in other layouts. Training without it would say nothing, so that each is
# refused, with what to write instead.
_OF_ROWS = {
    "conversations": (
        f'write format: llava, which reads it, or {_EXAMPLE} instead: "from": "human" is the role'
        ' user, "gpt" assistant, and "value" is the content'
    ),
    "system": 'write it as the first message: {"role": "system", "content": "…"}',
    "audio": NO_SOUND,
    "audios": NO_SOUND,
    "functions": 'write "tools": [{"type": "function", "function": {…}}]',
    "chat_template_kwargs": "the chat template is given no arguments of a row: remove them",
}
_SIZE = "set data.image.min_pixels and data.image.max_pixels for all images, or resize this one"
_OF_PARTS = {
    "weight": "a weight is of a whole turn: split the turn, or leave it out",
    "detail": _SIZE,
    "min_pixels": _SIZE,
    "max_pixels": _SIZE,
    "resized_height": _SIZE,
    "resized_width": _SIZE,
}
_SLIPS = re.compile(r"< ?\|?(image|video)[_ ]?\d*\|? ?>", re.IGNORECASE)


def parse_row(
    record: Mapping[str, Any],
    name: str,
    folder: Path,
    origin: Origin | None = None,
    urls: UrlCache | None = None,
    given_id: str = "",
    ignore: Collection[str] = (),
) -> Row:
    """Make a row of its JSON object; paths of images and videos are relative to `folder`.

    Args:
        ignore: keys of the row, of its messages and of their parts that may be there unread.
        urls: the images that may be fetched; None: none may.
        given_id: what the row's file calls it.

    Raises:
        Findings: `malformed-messages`, `missing-image`, `missing-video`, `broken-video`,
            `image-in-answer` or `placeholder-mismatch`, calling the row `name`.
    """
    malformed = Malformed(name, origin)
    unread = _unread_of_row(record, ignore, malformed)
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        what = 'there is no "messages"'
        if messages is not None:
            seen = shown_value(messages)
            what = f'"messages" must be a list with at least one message; here it is {seen}'
        raise malformed(what, _EXAMPLE)
    listed = {
        "image": _listed(record, "image", "cat.png", malformed),
        "video": _listed(record, "video", "clip.mp4", malformed),
    }
    tools = record.get("tools")
    if not _are_objects(tools):
        raise malformed(
            f'"tools" must be a list of objects; here it is {shown_value(tools)}',
            "write the list itself, not a text of it",
        )
    images: list[str | bytes] = []
    videos: list[RowVideo] = []
    unlisted = {kind: iter(entries) for kind, entries in listed.items()}
    placeholders = Counter[str]()

    def place(kind: str, given: Any, options: Mapping[str, Any]) -> dict[str, str]:
        """Return a part for an image or a video.

        Without a path of its own it takes the next one of the row's list.
        """
        if given is None:
            placeholders[kind] += 1
            given = next(unlisted[kind], None)
        if given is not None:
            if kind == "image":
                images.append(locate_image(given, name, folder, origin, urls))
            else:
                videos.append(locate_video(given, options, name, folder, origin))
        return {"type": kind}

    keys = MessageKeys(messages, ignore, malformed)
    rendered = [
        _message(message, number, place, keys, malformed)
        for number, message in enumerate(messages, 1)
    ]
    keys.check_marks()
    for kind, entries in listed.items():
        if placeholders[kind] != len(entries):
            message = (
                f"{name}: {plural(placeholders[kind], f'{kind} placeholder')}, but"
                f' {plural(len(entries), "entry", "entries")} in "{kind}s"'
            )
            raise refuse("placeholder-mismatch", message, origin)
    _check_characters(rendered, tools, malformed)
    thinking = record.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        raise malformed(f'"enable_thinking" is true or false; here it is {shown_value(thinking)}')
    remarks = keys.remarks
    if unread:
        said = {text for message in rendered for text in texts_of(message) if text}
        more = [key for key in unread if not is_said(record[key], said)]
        more = [key for key in more if record[key] != messages]
        told = [
            f'"{key}"' + (f" ({OTHER_TASKS[key]})" if key in OTHER_TASKS else "") for key in more
        ]
        remarks = [*(Remark("unread-key", words) for words in told), *remarks]
    return Row(
        *(name, rendered, images, tools, origin, videos, given_id, str(folder), thinking),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _unread_of_row(
    record: Mapping[str, Any], ignore: Collection[str], malformed: "Malformed"
) -> list[str]:
    """Return a row's keys that nothing reads and that may say something.

    Raises:
        Findings: `malformed-messages`, where it is known what they say.
    """
    unread = []
    for key, value in record.items():
        if key in KEYS_READ["row"] or key in ignore or is_empty(value) or is_nan(value):
            continue
        if value and key in _OF_ROWS:
            raise malformed(f'the row has "{key}", which is not read', _OF_ROWS[key])
        if meant := slip(KEYS_READ["row"], key, value):
            raise malformed(f'the row has "{key}", which is not read', f'write "{meant}"')
        if key in JUDGEMENTS and value is False:
            raise refuse(
                "not-for-training",
                f'{malformed.name} has "{key}": false: it is {OTHER_TASKS[key]}',
                malformed.origin,
                help=f"where it says nothing of the answer: ignore: [{key}]",
            )
        if not check_mask(key, value, malformed) and not is_known(key, value):
            unread.append(key)
    return unread


def check_mask(key: str, value: Any, malformed: "Malformed") -> bool:
    """Return whether a row's key says, of what is learnt of the row, what is so anyway.

    Raises:
        Findings: `malformed-messages`, where it says something else.
    """
    if masks := masks_row(key, value):
        what = f'the row has "{key}": {shown_value(value)}, which is not read'
        raise malformed(what, WRITE_WEIGHT)
    return masks is not None


def _listed(
    record: Mapping[str, Any], kind: str, example: str, malformed: "Malformed"
) -> list[Any]:
    """Return a row's images or videos; one alone may be given without a list, as TRL's rows do."""
    one, many = record.get(kind), record.get(f"{kind}s")
    if one and many:
        raise malformed(f'the row has both "{kind}" and "{kind}s"', f'write "{kind}s" alone')
    if many and not isinstance(many, list):
        what = f'"{kind}s" must be a list; here it is {shown_value(many)}'
        raise malformed(what, f'write "{kind}s": ["{example}"]')
    return many or (one if isinstance(one, list) else [one] if one else [])


class Malformed:
    """The place of a row; called, it makes the `malformed-messages` of it."""

    def __init__(self, name: str, origin: Origin | None) -> None:
        self.name, self.origin = name, origin

    def __call__(self, what: str, help: str | None = None) -> Findings:
        return refuse("malformed-messages", f"{self.name}: {what}", self.origin, help=help)


def _are_objects(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    )


def _check_characters(messages: list[dict[str, Any]], tools: Any, malformed: Malformed) -> None:
    """Refuse half of a character (a lone surrogate): JSON can write it, no tokenizer takes it."""
    for number, part in enumerate([*messages, tools], 1):
        try:
            json.dumps(part, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            where = f"turn {number}" if number <= len(messages) else '"tools"'
            half = f"\\u{ord(error.object[error.start]):04x}"
            help = "it is half of a character: write the character whole, or remove it"
            raise malformed(f"{where} has a lone surrogate, {half}", help) from error
        except RecursionError as error:
            raise malformed(f"turn {number} is nested too deeply") from error


def _message(
    message: Any, number: int, place: Place, keys: MessageKeys, malformed: Malformed
) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        what = f'"role" of turn {number} must be one of {", ".join(_ROLES)}; here it is'
        unread = keys.unread_tools()
        more = f"; of its messages, these keys are not read: {unread}" if unread else ""
        raise malformed(f"{what} {shown_value(role)}{more}", WRITE_TOOLS if unread else None)
    role, content, where = message["role"], message.get("content"), f"turn {number}"
    message = keys.read(message, number)
    if not _are_objects(message.get("tool_calls")):
        raise malformed(
            f'{where}: "tool_calls" must be a list of objects; here it is'
            f" {shown_value(message['tool_calls'])}"
        )
    if isinstance(content, str):
        if role != "assistant" and _are_parts(content):
            what = f'"content" of {where} is text: parts of content as JSON'
            raise malformed(what, "write the list itself: the model would read its brackets")
        parts: Any = (
            list(_split_tags(content, place, role))
            if any(tag in content for tag in _tags(role))
            else content
        )
    elif isinstance(content, list):
        parts = [part for given in content for part in _part(given, place, role, keys, malformed)]
    # a tool call: the chat template knows what to do with the other keys
    elif content is None and _says_more(message):
        parts = content
    elif content is None and role == "assistant":
        raise malformed(
            f'{where}, the assistant\'s, has no answer: "content" is null or not there', NO_ANSWER
        )
    elif is_nan(content):
        help = NO_ANSWER if role == "assistant" else "write the text, or remove the row"
        raise malformed(f'"content" of {where} is {missing_in_words(content)}', help)
    else:
        what = f'"content" of {where} must be text or a list of parts; here it is'
        raise malformed(f"{what} {shown_value(content)}")
    made = {**message, "content": parts}
    visual = (
        [part["type"] for part in parts if part["type"] != "text"]
        if role == "assistant" and isinstance(parts, list)
        else []
    )
    if visual:
        which = {"image": "an image", "video": "a video"}[visual[0]]
        raise refuse(
            "image-in-answer",
            f"{malformed.name}: {where}, the assistant's, has {which}",
            malformed.origin,
        )
    if role != "assistant" and any("<audio>" in text for text in texts_of(made)):
        raise malformed(f"{where} has the tag <audio>, which would be read as plain text", NO_SOUND)
    if role != "assistant" and (
        slip := next(filter(None, map(_SLIPS.search, texts_of(made))), None)
    ):
        help = (
            f"write {VIDEO_TAG} where a video is shown"
            if slip[1].lower() == "video"
            else f"write {TAG} where an image is shown"
        )
        raise malformed(f"{where} has {slip[0]}, which would be read as plain text", help)
    return made


def _are_parts(text: str) -> bool:
    """Return whether a text is a list of parts of content, as `json.dumps` writes it."""
    if not re.match(r"\s*\[\s*\{", text) or '"type"' not in text:
        return False
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return False
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    return len(kinds) == len(parts) and set(kinds) <= {"text", "image", "image_url", "video"}


def _says_more(message: Mapping[str, Any]) -> bool:
    """Return whether a message has a key that a template may write in the place of content."""
    return any(
        key not in ("role", "content", "weight") and (key in CARRIERS or not is_known(key))
        for key in message
    )


def _tags(role: str) -> tuple[str, ...]:
    """Return the tags that stand for something shown; an answer may well be about HTML."""
    return (TAG,) if role == "assistant" else (TAG, VIDEO_TAG)


def _split_tags(text: str, place: Place, role: str) -> Iterator[dict[str, str]]:
    for piece in re.split(f"({'|'.join(_tags(role))})", text):
        if piece in _tags(role):
            yield place(piece[1:-1], None, {})
        elif piece:
            yield {"type": "text", "text": piece}


def _part(
    part: Any, place: Place, role: str, keys: MessageKeys, malformed: Malformed
) -> Iterator[dict[str, str]]:
    if isinstance(part, dict):
        kind = part.get("type")
        nested = part.get(f"{kind}") if kind in ("image_url", "video_url") else None
        carried = {**part, **(nested if isinstance(nested, dict) else {})}
        for key, instead in (
            _OF_PARTS | (NOT_OF_VIDEOS if kind in ("video", "video_url") else {})
        ).items():
            if carried.get(key) not in (None, "auto"):
                raise malformed(f'a part of content has "{key}", which is not read', instead)
        if isinstance(kind, str):
            keys.check_part(carried, kind)
        match kind:
            case "text" if isinstance(part.get("text"), str):
                yield from _split_tags(part["text"], place, role)
                if not part["text"]:
                    yield {"type": "text", "text": ""}
                return
            case "image" if part.get("source") is not None:
                yield place(kind, image_of_source(part["source"], malformed), part)
                return
            case "image" | "video":
                yield place(
                    kind,
                    next(
                        (part[key] for key in (kind, "path", "url") if part.get(key) is not None),
                        None,
                    ),
                    part,
                )
                return
            case "image_url" | "video_url":
                yield place(
                    kind.removesuffix("_url"),
                    nested.get("url") if isinstance(nested, dict) else nested,
                    carried,
                )
                return
    wanted = '"text", "image", "image_url", "video" or "video_url"'
    raise malformed(f"a part of content must be of type {wanted}; here it is {shown_value(part)}")
