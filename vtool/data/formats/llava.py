"""A file of chats in LLaVA's layout, and ShareGPT's with images, as LLaMA-Factory reads it.

A row is `{"image": PATH, "conversations": [{"from": "human", "value": "<image>\\n…"}, {"from":
"gpt", "value": "…"}]}`; `images`, a list, may stand for `image`; `video` or `videos` may be there
too. Each `<image>` in a question takes the next image, and stays where it is in the text: none is
moved or added. A text `system` is the first turn. What else a row or a turn may have is as in the
format `messages`, to which rows are turned here. The rows of Qwen's own finetuning code are these.
"""

from collections.abc import Mapping
from typing import Any

from vtool.data.chats import VISUALS, ColumnsReader
from vtool.data.messages_layout import NO_ANSWER, Malformed
from vtool.data.missing import is_nan, missing_in_words
from vtool.data.row import shown_value

_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
_ROLES |= dict.fromkeys(("assistant", "chatgpt", "bot", "model"), "assistant")
"""The roles of turns, by their `from`."""

_EXAMPLE = 'write "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]'


class Llava(ColumnsReader):
    """Rows of one file or folder."""

    format = "llava"
    reads = ("conversations", "system", "tools", *VISUALS)
    words = "LLaVA or ShareGPT conversations"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        turns = record.get("conversations")
        first = turns[0] if isinstance(turns, list) and turns else None
        return isinstance(first, dict) and "from" in first and "value" in first

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        turns = record.get("conversations")
        if not isinstance(turns, list) or not turns:
            help = "write format: messages" if "messages" in record else _EXAMPLE
            seen = f"; here it is {shown_value(turns)}" if turns is not None else ""
            raise malformed(f'there is no list "conversations" with a turn{seen}', help)
        if "messages" in record:
            raise malformed('the row has both "conversations" and "messages"')
        made = {key: value for key, value in record.items() if key in ("tools", "images", "videos")}
        for key in ("image", "video"):
            if (one := record.get(key)) is not None:
                if record.get(f"{key}s"):
                    raise malformed(f'the row has both "{key}" and "{key}s"')
                made[f"{key}s"] = one if isinstance(one, list) else [one]
        system = [{"role": "system", "content": record["system"]}] if record.get("system") else []
        messages = [_message(turn, number, malformed) for number, turn in enumerate(turns, 1)]
        return made | {"messages": system + messages}


def _message(turn: Any, number: int, malformed: Malformed) -> dict[str, Any]:
    speaker = turn.get("from") if isinstance(turn, dict) else turn
    if not isinstance(turn, dict) or not isinstance(speaker, str) or speaker not in _ROLES:
        what = f'"from" of turn {number} must be one of {", ".join(_ROLES)}; here it is'
        raise malformed(f"{what} {shown_value(speaker)}", _EXAMPLE)
    for key, instead in (("role", "from"), ("content", "value")):
        if key in turn:
            raise malformed(f'turn {number} has "{key}", which is not read', f'write "{instead}"')
    value = turn.get("value")
    if (value is None or is_nan(value)) and _ROLES[speaker] == "assistant":
        seen = "null or not there" if value is None else missing_in_words(value)
        raise malformed(
            f'turn {number}, the assistant\'s, has no answer: "value" is {seen}', NO_ANSWER
        )
    if not isinstance(value, str):
        seen = missing_in_words(value) or shown_value(value)
        raise malformed(f'"value" of turn {number} must be text; here it is {seen}')
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {**rest, "role": _ROLES[speaker], "content": value}
