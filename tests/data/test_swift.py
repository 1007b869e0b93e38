import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import read, refused, said
from tests.rows import chat, picture, write_rows
from tests.runs import request
from vtool.diagnostics import Diagnostic
from vtool.verification.rows import audit_rows


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


def seen(number: int, **objects: Any) -> dict[str, Any]:
    """A row of ms-swift's grounding: a question for a place, and a box of the picture."""
    row = chat(f"<image>Where is <ref-object>, please? {number}", "<bbox>")
    own = {"ref": ["the cat"], "bbox": [[10, 20, 110 + 7 * number, 220 + 5 * number]]}
    return row | {"images": ["a.png"], "objects": own | objects}


def test_names_and_boxes_are_written_where_their_tags_are(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (row,) = read("swift", tmp_path, seen(7, bbox=[[10, 20.5, 30, 40]]))
    where = "Where is <|object_ref_start|>the cat<|object_ref_end|>, please? 7"
    assert row.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": where}]
    assert row.messages[1]["content"] == "<|box_start|>(10,20.5),(30,40)<|box_end|>"
    as_text = seen(7, bbox=[[10, 20.5, 30, 40]])
    as_text["objects"] = json.dumps(as_text["objects"])
    assert read("swift", tmp_path, as_text)[0].messages == row.messages
    (row,) = read("swift", tmp_path, seen(7, bbox=[[0.25, 0.5]], bbox_type="norm1", area=[3]))
    assert row.messages[1]["content"] == "<|box_start|>(0.25,0.5)<|box_end|>"
    assert [one.words for one in row.remarks] == ['"objects.area"']
    (row,) = read("swift", tmp_path, chat("a", "b") | {"objects": seen(0)["objects"]})
    assert [one.words for one in row.remarks] == ['"objects"'], "without a tag, nothing shows it"


def boxes_told(folder: Path, rows: list[Any]) -> list[Diagnostic]:
    file = write_rows(folder / "train.jsonl", rows)
    (audit,) = audit_rows(request("rows", f"data.train=[{{format: swift, path: {file}}}]").run)
    return [one for one in audit.findings if one.rule.startswith("boxes-")]


def test_boxes_of_objects_are_looked_at(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 640, 480)
    rows = [seen(number) for number in range(30)]
    assert boxes_told(tmp_path, rows) == []
    rows += [seen(30, bbox=[[10, 20, 3000, 400]]), seen(31, bbox=[[300, 20, 30, 400]])]
    told = boxes_told(tmp_path, rows)
    assert [one.rule for one in told] == ["boxes-leave-picture", "boxes-inverted"]
    assert "train.jsonl:31 goes up to x 3000, y 400 in a picture of 640 × 480" in told[0].message


def turned(role: str = "assistant", **keys: Any) -> dict[str, Any]:
    messages = chat("a", "b")["messages"]
    return {"messages": [*messages, {"role": role, "content": "c", **keys}]}


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        (seen(0, bbox=[[1, 2, 3]]), "malformed-messages", "[1, 2, 3], which is no box"),
        (seen(0, bbox=[["a", 1, 2, 3]]), "malformed-messages", "which is no box"),
        (seen(0, bbox=[[1, 2, 3, 4]] * 2), "placeholder-mismatch", "1 tag <bbox>, but 2 entries"),
        (seen(0, ref=[]), "placeholder-mismatch", "1 tag <ref-object>, but 0 entries"),
        (seen(0, bbox_type="norm1000"), "malformed-messages", '"bbox_type" of "objects" is \'no'),
        (seen(0) | {"objects": [1]}, "malformed-messages", '"objects" must be an object'),
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
