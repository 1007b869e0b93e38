"""A JSON-lines file of chats in the `messages` layout of OpenAI and transformers.

A line is `{"messages": [{"role", "content"}, …]}`. Content is text, or typed parts; an image is a
part `{"type": "image", "image": PATH}` (or `path`, `url`), a part `{"type": "image_url",
"image_url": {"url": PATH}}`, or an `<image>` tag (or a part without a path) that takes the next
entry of the row's `images` list. Paths are relative to the file's folder; `data:` addresses carry
the picture itself. An assistant's message of `"weight": 0` is not learnt, as in OpenAI's
fine-tuning. Keys that are not known are let be, unless they carry what belongs into a message
elsewhere: those are refused by name.
"""

import shlex
from typing import Any

from vtool.data.json_lines import JsonLines
from vtool.data.messages_layout import parse_row
from vtool.data.row import Row, refuse


class Messages(JsonLines):
    """Rows of one file."""

    def __init__(self, path: str, label: str | None = None) -> None:
        """Find the lines of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.

        Raises:
            Findings: `path-not-found`; `broken-row`, where the whole file is one piece of JSON.
        """
        super().__init__(path, label)
        self._check_layout()

    def row(self, index: int) -> Row:
        record = self.record(index)
        return parse_row(record, self.name(index), self.path.parent, self.origin(index))

    def describe(self) -> dict[str, Any]:
        return {"format": "messages", **super().describe()}

    def _check_layout(self) -> None:
        """Refuse a file that is one piece of JSON, once and not for each of its lines."""
        if not self.places:
            return
        first, last = self.text(0).lstrip(), self.text(len(self.places) - 1)
        out = self.path.with_suffix(".jsonl")
        out = out if out != self.path else self.path.with_name(f"{self.path.stem}-lines.jsonl")
        if first.startswith(b"[") and last.endswith(b"]"):
            what, command = (
                "is a JSON array, not JSON lines: each row must be an object in a line of its own",
                "jq -c '.[]'",
            )
        elif first == b"{" and len(self.places) > 1:
            what, command = (
                "has rows that go over several lines: each row must be in a line of its own",
                "jq -c .",
            )
        else:
            return
        raise refuse(
            "broken-row",
            f"{self.path} {what}",
            self.origin(0),
            help=f"{command} {shlex.quote(str(self.path))} > {shlex.quote(str(out))}",
        )
