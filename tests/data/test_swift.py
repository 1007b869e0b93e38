from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import read, refused, said
from tests.rows import chat, picture


def test_a_message_without_loss_is_not_learnt(tmp_path: Path) -> None:
    turns = [*chat("a", "b")["messages"], *chat("c", "d")["messages"]]
    turns[1]["loss"] = False
    (row,) = read("swift", tmp_path, {"messages": turns, "channel": "web"})
    assert list(row.supervised()) == [3]
    turns[1] = {"role": "assistant", "content": "b", "loss": True, "loss_scale": 1.0}
    (row,) = read("swift", tmp_path, {"messages": turns})
    assert list(row.supervised()) == [1, 3]


def test_its_shapes_are_the_same_chat(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    same = {"system": "s", "images": "a.png"}
    rows = read(
        "swift",
        tmp_path,
        {"query": "<image>c", "response": "d", "history": [["a", "b"]], **same},
        {
            "conversation": [
                {"human": "a", "assistant": "b"},
                {"human": "<image>c", "assistant": "d"},
            ],
            **same,
        },
        {
            "messages": [*chat("a", "b")["messages"], *chat("<image>c", "d")["messages"]],
            **same,
        },
    )
    assert rows[0].messages == rows[1].messages == rows[2].messages
    assert said(rows[0])[:3] == [("system", "s"), ("user", "a"), ("assistant", "b")]
    assert {tuple(row.images) for row in rows} == {(str(tmp_path / "a.png"),)}


def test_tools_may_be_text(tmp_path: Path) -> None:
    (row,) = read("swift", tmp_path, chat("a", "b") | {"tools": '[{"name": "look"}]'})
    assert row.tools == [{"name": "look"}]
    assert "not JSON" in refused("swift", tmp_path, chat("a", "b") | {"tools": "["}).message


def turned(role: str = "assistant", **keys: Any) -> dict[str, Any]:
    messages = chat("a", "b")["messages"]
    return {"messages": [*messages, {"role": role, "content": "c", **keys}]}


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        (chat("a", "b") | {"objects": {"bbox": [[1, 2, 3, 4]]}}, "not-for-training", "has boxes"),
        (turned(loss_scale=0.5), "malformed-messages", '"loss_scale": 0.5, which is not read'),
        (turned("user", loss=True), "malformed-messages", "only turns of the assistant are learnt"),
        (turned(loss=True, loss_scale=0), "malformed-messages", "which differ"),
        (turned("tool_call"), "malformed-messages", "call of a tool as text"),
        ({"query": "a", "response": None}, "malformed-messages", 'no answer: "response" is null'),
        ({"query": "a", "response": ["b", "c"]}, "malformed-messages", '"response" must be text'),
        ({"query": "a", "response": "b", "label": False}, "not-for-training", "judgement"),
        (chat("a", "b") | {"chat_template_kwargs": {"a": 1}}, "malformed-messages", "kwargs"),
        (chat("a", "b") | {"response": "c"}, "malformed-messages", "has one of"),
        (chat("a", "b") | {"query": "c"}, "malformed-messages", 'both "messages" and "query"'),
        (
            {"conversation": [{"human": "a", "assistant": "b", "system": "c"}]},
            "malformed-messages",
            '"conversation" has',
        ),
        (turned("system") | {"system": "s"}, "malformed-messages", "next to a message of"),
    ],
)
def test_what_cannot_be_mapped_is_named(
    tmp_path: Path, row: dict[str, Any], rule: str, words: str
) -> None:
    finding = refused("swift", tmp_path, row)
    assert finding.rule == rule
    assert words in finding.message
