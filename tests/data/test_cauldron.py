from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import open_rows, read, refused, said
from tests.rows import picture, write_rows


def asked(*texts: tuple[str, str], **more: Any) -> dict[str, Any]:
    made = [{"user": user, "assistant": answer, "source": "AI2D"} for user, answer in texts]
    return {"texts": made, "images": ["a.png"], **more}


@pytest.fixture(autouse=True)
def _picture(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")


def test_questions_are_turns_of_one_chat_with_the_images_first(tmp_path: Path) -> None:
    (row,) = read("cauldron", tmp_path, asked(("q1", "a1"), ("q2", "a2")), texts="turns")
    assert said(row) == [
        ("user", [{"type": "image"}, {"type": "text", "text": "q1"}]),
        ("assistant", "a1"),
        ("user", "q2"),
        ("assistant", "a2"),
    ]
    assert row.images == [str(tmp_path / "a.png")]


def test_questions_are_rows_of_their_own_where_the_source_says_so(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "rows.jsonl", [asked(("q1", "a1"), ("q2", "a2")), "{", asked(("q3", "a3"))]
    )
    rows = open_rows("cauldron", path, texts="rows")
    assert [rows.name(index) for index in range(len(rows))] == [
        "rows.jsonl:1#1",
        "rows.jsonl:1#2",
        "rows.jsonl:2#1",
        "rows.jsonl:3#1",
    ]
    image = {"type": "image"}
    for index, question in ((0, "q1"), (1, "q2"), (3, "q3")):
        first = rows.row(index).messages[0]
        assert first["content"] == [image, {"type": "text", "text": question}]
        assert len(rows.row(index).messages) == 2
    assert rows.describe()["rows"] == 4
    with pytest.raises(ValueError, match=r"broken-row.*rows\.jsonl:2#1|broken-row.*rows\.jsonl:2"):
        rows.row(2)


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        ({"texts": [], "images": ["a.png"]}, "malformed-messages", '"texts" must be a list'),
        (asked(("<image>q", "a")), "malformed-messages", "has <image> as text"),
        ({"texts": [{"user": "q", "assistant": 7}]}, "malformed-messages", "texts.assistant"),
    ],
)
def test_what_cannot_be_mapped_is_named(
    tmp_path: Path, row: dict[str, Any], rule: str, words: str
) -> None:
    finding = refused("cauldron", tmp_path, row, texts="turns")
    assert finding.rule == rule
    assert words in finding.message
