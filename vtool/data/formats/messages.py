"""Chats in the `messages` layout of OpenAI and transformers.

A row is `{"messages": [{"role", "content"}, …]}`. Content is text, or typed parts; an image is a
part `{"type": "image", "image": PATH}` (or `path`, `url`), a part `{"type": "image_url",
"image_url": {"url": PATH}}`, a part `{"type": "image", "source": {…}}` as Anthropic has it, or an
`<image>` tag (or a part without a path) that takes the next entry of the row's `images` list. Paths
are relative to the file's folder; `data:` addresses carry the picture itself, as does an entry
`{"bytes", "path"}` of Arrow and Parquet. An assistant's message of `"weight": 0` is not learnt, as
in OpenAI's fine-tuning, or where another project's key says so. Other keys that are not known are
reported, or refused by name if they carry what belongs into a message elsewhere.
"""

from collections.abc import Mapping
from typing import Any

from vtool.data.chats import VISUALS, ChatReader
from vtool.data.messages_layout import Malformed


class Messages(ChatReader):
    """Rows of one file or folder."""

    format = "messages"
    reads = ("messages", "tools", "enable_thinking", *VISUALS)
    words = "messages"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        messages = record.get("messages")
        first = messages[0] if isinstance(messages, list) and messages else None
        return isinstance(first, dict) and "role" in first

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        return dict(record)
