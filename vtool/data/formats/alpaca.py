"""Instructions in Alpaca's columns: `instruction`, `input`, `output`, `system`, `history`.

The question is the instruction and, in a line below it, the input. `history` has earlier pairs of a
question and its answer; these answers are learnt too, as LLaMA-Factory does.
"""

from collections.abc import Mapping
from typing import Any

from vtool.data.chats import (
    VISUALS,
    ColumnsReader,
    answer_text,
    exchanges,
    text,
    tools,
    visuals,
)
from vtool.data.messages_layout import Malformed

_READ = ("instruction", "input", "output", "system", "history", "tools", *VISUALS)


class Alpaca(ColumnsReader):
    """Rows of one file or folder."""

    format = "alpaca"
    reads = _READ
    words = "Alpaca instructions"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return "instruction" in record and "output" in record

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        return from_instruction(record, malformed)


def from_instruction(record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
    """Return a row of Alpaca's columns in the layout `messages`.

    Raises:
        Findings: `malformed-messages`.
    """
    asked = [text(record.get("instruction"), "instruction", malformed)]
    if record.get("input"):
        asked.append(text(record["input"], "input", malformed))
    answer = answer_text(record.get("output"), "output", malformed)
    pairs = record.get("history") or []
    messages = [*exchanges(pairs, "history", malformed, record.get("system"))]
    messages += exchanges([("\n".join(filter(None, asked)), answer)], "output", malformed)
    return {"messages": messages, **visuals(record, malformed), **tools(record, malformed)}
