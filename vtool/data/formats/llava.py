"""A file of chats in LLaVA's layout, and ShareGPT's with images, as LLaMA-Factory reads it.

A row is `{"image": PATH, "conversations": [{"from": "human", "value": "<image>\\n…"}, {"from":
"gpt", "value": "…"}]}`; `images`, a list, may stand for `image`, and `video` or `videos` beside
them. Each `<image>` in a question takes the next image, and stays where it is in the text: none is
moved or added. A text `system` is the first turn. What else a row or a turn may have is as in the
format `messages`, to which rows are turned here. The file is a JSON array, or has a row in each
line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

from vtool.data.json_lines import JsonLines, Place
from vtool.data.messages_layout import parse_row
from vtool.data.row import Row, refuse, shown
from vtool.diagnostics import Origin

ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
ROLES |= {"assistant": "assistant"}
"""The roles of turns, by their `from`."""
CHUNK = 2**20
"""Characters of an array that are read at once."""

_EXAMPLE = 'write "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]'
_OPENS = re.compile("\ufeff?[ \t\n\r]*\\[[ \t\n\r]*(]?)")
_GOES_ON = re.compile("[ \t\n\r]*([,\\]])[ \t\n\r]*")


class Llava(JsonLines):
    """Rows of one file. Those of a JSON array go by their number in it, from 1."""

    def __init__(self, path: str, image_folder: str | None = None, label: str | None = None):
        """Find the rows of `path`.

        Args:
            image_folder: the folder of images and videos; the file's own without it.
            label: the beginning of its rows' names, in place of the file's own name.

        Raises:
            Findings: `path-not-found`; `broken-row`, where an array is not JSON.
        """
        super().__init__(path, label)
        self.image_folder = image_folder

    def row(self, index: int) -> Row:
        name, origin = self.name(index), self.origin(index)
        record = _to_messages(self.record(index), name, origin)
        return parse_row(record, name, Path(self.image_folder or self.path.parent), origin)

    def describe(self) -> dict[str, Any]:
        return {"format": "llava", "image_folder": self.image_folder, **super().describe()}

    def find_rows(self, file: BinaryIO) -> Iterator[Place]:
        array = _OPENS.match(file.read(1024).decode(errors="replace"))
        file.seek(0)
        return self._elements(file) if array else super().find_rows(file)

    def _elements(self, file: BinaryIO) -> Iterator[Place]:
        """Yield the place of each element of an array.

        Each is parsed, and let go. Memory has a chunk, or the longest element; of a file that is
        broken, all that follows.
        """
        source, decode = TextIOWrapper(file, "utf-8", newline=""), json.JSONDecoder().raw_decode
        text, at, number, line, start, separator = "", 0, 0, 1, 0, _OPENS
        while True:
            try:
                if not (found := separator.match(text, at)):
                    place = len(text) - len(text[at:].lstrip())
                    raise json.JSONDecodeError(
                        "a comma or the array's end is expected", text, place
                    )
                if found[1] == "]":
                    if (text[found.end() :] + source.read()).strip():
                        raise json.JSONDecodeError("there is more after the array", text, at)
                    return
                _, end = decode(text, found.end())
            except (json.JSONDecodeError, RecursionError) as error:
                # It may only be cut off here.
                more = "" if isinstance(error, RecursionError) else self._read(source, len(text))
                if more:
                    text, at = text[at:] + more, 0
                    continue
                place = error.pos if isinstance(error, json.JSONDecodeError) else at
                why = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise self._no_array(
                    f"at row {number + 1}, {why}", line + text.count("\n", at, place)
                ) from error
            between, element = text[at : found.end()], text[found.end() : end].encode()
            number, at, separator = number + 1, end, _GOES_ON
            line, start = line + between.count("\n"), start + len(between.encode())
            yield Place(number, line, start, len(element))
            line, start = line + element.count(b"\n"), start + len(element)

    def _read(self, source: TextIOWrapper, least: int) -> str:
        """Return what follows, twice as much as is there, so that a long row is not slow."""
        try:
            return source.read(max(CHUNK, least))
        except UnicodeDecodeError as error:
            raise self._no_array(str(error), 1) from error

    def _no_array(self, why: str, line: int) -> Exception:
        message = f"{self.path} is not a JSON array: {why}"
        return refuse("broken-row", message, Origin(str(self.path), line))


def _to_messages(record: Mapping[str, Any], name: str, origin: Origin) -> dict[str, Any]:
    """Return a row in the layout of the format `messages`.

    Raises:
        Findings: `malformed-messages`.
    """
    turns = record.get("conversations")
    if not isinstance(turns, list) or not turns:
        help = "write format: messages" if "messages" in record else _EXAMPLE
        raise _malformed(name, 'there is no list "conversations" with a turn', origin, help)
    if "messages" in record:
        raise _malformed(name, 'the row has both "conversations" and "messages"', origin)
    made = {
        key: value
        for key, value in record.items()
        if key not in ("conversations", "image", "video", "system")
    }
    for key in ("image", "video"):
        if (one := record.get(key)) is not None:
            if record.get(f"{key}s"):
                raise _malformed(name, f'the row has both "{key}" and "{key}s"', origin)
            made[f"{key}s"] = one if isinstance(one, list) else [one]
    system = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    messages = [_message(turn, number, name, origin) for number, turn in enumerate(turns, 1)]
    return made | {"messages": system + messages}


def _message(turn: Any, number: int, name: str, origin: Origin) -> dict[str, Any]:
    speaker = turn.get("from") if isinstance(turn, dict) else turn
    if not isinstance(turn, dict) or not isinstance(speaker, str) or speaker not in ROLES:
        what = f'"from" of turn {number} must be one of {", ".join(ROLES)}; here it is'
        raise _malformed(name, f"{what} {shown(speaker)}", origin, _EXAMPLE)
    for key, instead in (("role", "from"), ("content", "value")):
        if key in turn:
            what = f'turn {number} has "{key}", which is not read'
            raise _malformed(name, what, origin, f'write "{instead}"')
    if not isinstance(turn.get("value"), str):
        what = f'"value" of turn {number} must be text; here it is {shown(turn.get("value"))}'
        raise _malformed(name, what, origin)
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {**rest, "role": ROLES[speaker], "content": turn["value"]}


def _malformed(name: str, what: str, origin: Origin, help: str | None = None) -> Exception:
    return refuse("malformed-messages", f"{name}: {what}", origin, help=help)
