"""A JSON-lines file of chats in the `messages` layout of OpenAI and transformers.

A line is `{"messages": [{"role", "content"}, …]}`. Content is text, or typed parts; an image is a part `{"type": "image", "image": PATH}`
(or `path`, `url`), a part `{"type": "image_url", "image_url": {"url": PATH}}`, or an `<image>` tag (or a part without a path) that takes
the next entry of the row's `images` list. Paths are relative to the file's folder; `data:` addresses carry the picture itself.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.data.row import Row, beside, refuse
from vtool.diagnostics import Origin

ROLES = ("system", "user", "assistant", "tool")
TAG = "<image>"


class Messages:
    """Rows of one file. Lines are found once, and read and parsed when they are asked for; blank lines are no rows."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.lines: list[tuple[int, int, int]] = []  # (line number from 1, first byte, bytes)
        digest = hashlib.sha256()
        start = 0
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    digest.update(line)
                    if line.strip():
                        self.lines.append((number, start, len(line)))
                    start += len(line)
        except OSError as error:
            message = f"{self.path.absolute()}: {error.strerror}"
            raise refuse("path-not-found", message, None, parameter="data", help="paths are relative to the folder you are in") from error
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.lines)

    def name(self, index: int) -> str:
        return f"{self.path.name}:{self.lines[index][0]}"

    def row(self, index: int) -> Row:
        number, start, size = self.lines[index]
        origin = Origin(str(self.path), number)
        with self.path.open("rb") as file:
            file.seek(start)
            line = file.read(size).rstrip()
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            column = error.colno if isinstance(error, json.JSONDecodeError) else None
            raise refuse("broken-row", f"line {number} is not JSON: {error}", Origin(str(self.path), number, column)) from error
        if not isinstance(record, dict):
            raise refuse("broken-row", f"line {number} is JSON, but no object: {type(record).__name__}", origin)
        return _parse(record, self.name(index), self.path.parent, origin)

    def ledger(self) -> dict[str, Any]:
        return {"format": "messages", "path": str(self.path), "sha256": self.digest, "rows": len(self)}


def _parse(record: Mapping[str, Any], name: str, folder: Path, origin: Origin) -> Row:
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        raise refuse("malformed-messages", f'{name}: there is no list "messages" with at least one message', origin)
    if record.get("videos"):
        raise refuse("malformed-messages", f'{name}: "videos" are not supported yet', origin)
    listed = record.get("images") or []
    if not isinstance(listed, list):
        raise refuse("malformed-messages", f'{name}: "images" must be a list', origin)
    images: list[Any] = []
    unlisted = iter(listed)
    placeholders = 0

    def place(given: Any) -> dict[str, str]:
        """An image part; without a path of its own it takes the next one of the row's list."""
        nonlocal placeholders
        if given is None:
            placeholders += 1
            given = next(unlisted, None)
        if given is not None:
            images.append(_locate(given, name, folder, origin))
        return {"type": "image"}

    rendered = [_message(message, place, name, origin) for message in messages]
    if placeholders != len(listed):
        message = f'{name}: {placeholders} image placeholders, but {len(listed)} entries in "images"'
        raise refuse("placeholder-mismatch", message, origin)
    return Row(name, rendered, images, record.get("tools"), origin)


def _message(message: Any, place: Any, name: str, origin: Origin) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise refuse("malformed-messages", f"{name}: a message's role must be one of {', '.join(ROLES)}; here it is {role!r}", origin)
    content = message.get("content")
    if isinstance(content, str):
        parts: Any = list(_split_tags(content, place)) if TAG in content else content
    elif isinstance(content, list):
        parts = [part for given in content for part in _part(given, place, name, origin)]
    elif content is None and len(message) > 2:  # a tool call: the chat template knows what to do with the other keys
        parts = content
    else:
        raise refuse("malformed-messages", f"{name}: content must be text or a list of parts; here it is {type(content).__name__}", origin)
    return {**message, "content": parts}


def _split_tags(text: str, place: Any) -> Iterator[dict[str, str]]:
    first, *rest = text.split(TAG)
    if first:
        yield {"type": "text", "text": first}
    for piece in rest:
        yield place(None)
        if piece:
            yield {"type": "text", "text": piece}


def _part(part: Any, place: Any, name: str, origin: Origin) -> Iterator[dict[str, str]]:
    if isinstance(part, dict):
        match part.get("type"):
            case "text" if isinstance(part.get("text"), str):
                yield from _split_tags(part["text"], place) if TAG in part["text"] else [{"type": "text", "text": part["text"]}]
                return
            case "image":
                yield place(next((part[key] for key in ("image", "path", "url") if part.get(key) is not None), None))
                return
            case "image_url":
                url = part.get("image_url")
                yield place(url.get("url") if isinstance(url, dict) else url)
                return
    raise refuse(
        "malformed-messages", f'{name}: a part of content must be of type "text", "image" or "image_url"; here it is {part!r:.80}', origin
    )


def _locate(given: Any, name: str, folder: Path, origin: Origin) -> Any:
    if isinstance(given, dict):  # {"path": …}, as the datasets library writes an image
        given = given.get("path")
    if not isinstance(given, str):
        raise refuse("malformed-messages", f"{name}: an image must be a path; here it is {given!r:.80}", origin)
    if given.startswith("data:"):
        return given
    if given.startswith(("http://", "https://")):
        raise refuse("missing-image", f"{name}: {given} is an address on the web, which is not fetched", origin)
    path = beside(folder, given)
    if not path.is_file():
        raise refuse("missing-image", f"{name}: there is no image {path}", origin)
    return str(path)
