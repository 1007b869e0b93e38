"""Rows in TRL's columns: `messages`, or lists `prompt` and `completion`, with `images`.

As in TRL, of a prompt with its completion the completion alone is learnt: an answer inside the
prompt has weight 0. Image parts take the row's `images` in order; without any, they stand before
the first user's text.
"""

from collections.abc import Mapping
from typing import Any

from vtool.data.chats import VISUALS, ColumnsReader, not_for_training, tools, visuals
from vtool.data.keys import OTHER_TASKS
from vtool.data.messages_layout import Malformed
from vtool.data.row import shown_value

_READ = ("messages", "prompt", "completion", "tools", *VISUALS)


class Trl(ColumnsReader):
    """Rows of one file or folder."""

    format = "trl"
    reads = _READ
    words = "TRL prompts and completions"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return "prompt" in record and "completion" in record

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        asked, answer = record.get("prompt"), record.get("completion")
        messages = record.get("messages")
        if messages is not None and (asked is not None or answer is not None):
            raise malformed('the row has "messages" next to "prompt" or "completion"')
        if messages is None:
            if answer is None and (task := next(filter(record.get, OTHER_TASKS), None)):
                raise not_for_training(malformed, f'it has "{task}": it is {OTHER_TASKS[task]}')
            if isinstance(asked, str) or isinstance(answer, str):
                what = (
                    "the prompt or the completion is text without roles, for a model without a"
                    " chat template"
                )
                help = 'write a list of messages: "prompt": [{"role": "user", "content": "…"}]'
                raise not_for_training(malformed, what, help)
            for key, value in (("prompt", asked), ("completion", answer)):
                if not isinstance(value, list) or not value:
                    what = f'"{key}" must be a list of messages; here it is {shown_value(value)}'
                    raise malformed(what)
            assert isinstance(asked, list)
            assert isinstance(answer, list)
            messages = [*map(_unlearnt, asked), *answer]
        shown = visuals(record, malformed)
        return {
            "messages": _with_images(messages, len(shown.get("images") or ())),
            **shown,
            **tools(record, malformed),
        }


def _with_images(messages: Any, images: int) -> Any:
    """Return messages with a row's images before the first user's text, where none says its place.

    So does TRL (`prepare_multimodal_messages`) where all contents are text.
    """
    if not images or not isinstance(messages, list):
        return messages
    texts = [one.get("content") for one in messages if isinstance(one, Mapping)]
    if not all(isinstance(text, str | None) and "<image>" not in (text or "") for text in texts):
        return messages
    for place, one in enumerate(messages):
        if isinstance(one, Mapping) and one.get("role") == "user":
            parts = [{"type": "image"}] * images
            text = {"type": "text", "text": one.get("content") or ""}
            return [*messages[:place], {**one, "content": [*parts, text]}, *messages[place + 1 :]]
    return messages


def _unlearnt(message: Any) -> Any:
    if isinstance(message, Mapping) and message.get("role") == "assistant":
        return {**message, "weight": 0}
    return message
