"""A JSON-lines file of chats in the `messages` layout of OpenAI and transformers.

A line is `{"messages": [{"role", "content"}, …]}`. Content is text, or typed parts; an image is a
part `{"type": "image", "image": PATH}` (or `path`, `url`), a part `{"type": "image_url",
"image_url": {"url": PATH}}`, or an `<image>` tag (or a part without a path) that takes the next
entry of the row's `images` list. Paths are relative to the file's folder; `data:` addresses carry
the picture itself. An assistant's message of `"weight": 0` is not learnt, as in OpenAI's
fine-tuning. Keys that are not known are let be, unless they carry what belongs into a message
elsewhere: those are refused by name.
"""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from vtool.data.messages_layout import parse_row
from vtool.data.row import Row, refuse
from vtool.diagnostics import Origin


class Messages:
    """Rows of one file.

    Lines are found once, and read and parsed when they are asked for; blank lines are no rows.
    """

    def __init__(self, path: str, label: str | None = None) -> None:
        """Find the lines of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.

        Raises:
            Findings: `path-not-found`; `broken-row`, where the whole file is one piece of JSON.
        """
        self.path = Path(path)
        self.label = label or self.path.name
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
            raise refuse(
                "path-not-found",
                message,
                None,
                parameter="data",
                help="paths are relative to the folder you are in",
            ) from error
        self.digest = digest.hexdigest()
        self._check_layout()

    def __len__(self) -> int:
        return len(self.lines)

    def name(self, index: int) -> str:
        return f"{self.label}:{self.lines[index][0]}"

    def row(self, index: int) -> Row:
        number = self.lines[index][0]
        origin = Origin(str(self.path), number)
        try:
            # Strictly: json itself would let halves of characters pass. Some editors write a mark
            # at the beginning of a file.
            record = json.loads(self._line(index).decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            column, why = (
                None,
                ("it is nested too deeply" if isinstance(error, RecursionError) else str(error)),
            )
            if isinstance(error, json.JSONDecodeError):
                # its own words count lines from this one
                column, why = error.colno, f"{error.msg} (column {error.colno})"
            message = f"{self.name(index)} is not JSON: {why}"
            raise refuse("broken-row", message, Origin(str(self.path), number, column)) from error
        if not isinstance(record, dict):
            raise refuse(
                "broken-row",
                f"{self.name(index)} is JSON, but no object: {type(record).__name__}",
                origin,
            )
        return parse_row(record, self.name(index), self.path.parent, origin)

    def describe(self) -> dict[str, Any]:
        return {
            "format": "messages",
            "path": str(self.path),
            "sha256": self.digest,
            "rows": len(self),
        }

    def _line(self, index: int) -> bytes:
        _, start, size = self.lines[index]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size).rstrip()

    def _check_layout(self) -> None:
        """Refuse a file that is one piece of JSON, once and not for each of its lines."""
        if not self.lines:
            return
        first, last = self._line(0).lstrip(), self._line(len(self.lines) - 1)
        out = self.path.with_suffix(".jsonl")
        out = out if out != self.path else self.path.with_name(f"{self.path.stem}-lines.jsonl")
        if first.startswith(b"[") and last.endswith(b"]"):
            what, command = (
                "is a JSON array, not JSON lines: each row must be an object in a line of its own",
                "jq -c '.[]'",
            )
        elif first == b"{" and len(self.lines) > 1:
            what, command = (
                "has rows that go over several lines: each row must be in a line of its own",
                "jq -c .",
            )
        else:
            return
        origin = Origin(str(self.path), self.lines[0][0])
        raise refuse(
            "broken-row",
            f"{self.path} {what}",
            origin,
            help=f"{command} {shlex.quote(str(self.path))} > {shlex.quote(str(out))}",
        )
