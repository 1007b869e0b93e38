from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import read, refused, said
from tests.rows import picture


def test_the_input_is_a_line_below_the_instruction_and_earlier_answers_are_learnt(
    tmp_path: Path,
) -> None:
    picture(tmp_path / "a.png")
    plain, full = read(
        "alpaca",
        tmp_path,
        {"id": 1, "instruction": "Add.", "input": "", "output": "3"},
        {
            "instruction": "Name <image>",
            "input": "in Greek",
            "output": "γάτα",
            "system": "Be brief.",
            "history": [["Hi", "Hello"]],
            "images": ["a.png"],
        },
    )
    assert said(plain) == [("user", "Add."), ("assistant", "3")]
    assert said(full)[:3] == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello")]
    assert full.messages[3]["content"] == [
        {"type": "text", "text": "Name "},
        {"type": "image"},
        {"type": "text", "text": "\nin Greek"},
    ]
    assert list(full.supervised()) == [2, 4]
    assert full.images == [str(tmp_path / "a.png")]


def test_a_key_that_is_not_read_is_remarked_on_unless_the_source_ignores_it(tmp_path: Path) -> None:
    row = {"instruction": "a", "output": "b", "rationale": "because", "hint": 3, "id": "x"}
    (made,) = read("alpaca", tmp_path, row)
    assert [one.words for one in made.remarks] == ['"rationale"', '"hint"']
    (kept,) = read("alpaca", tmp_path, row, ignore=["rationale", "hint"])
    assert said(kept) == [("user", "a"), ("assistant", "b")]
    assert kept.remarks == ()


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        ({"instruction": "a", "output": ["b"]}, "malformed-messages", '"output" must be text'),
        (
            {"instruction": "a"},
            "malformed-messages",
            'the row has no answer: "output" is null or not there',
        ),
        (
            {"instruction": "a", "output": "b", "history": [["q"]]},
            "malformed-messages",
            "no pair of two texts",
        ),
        (
            {"instruction": "a", "output": "b", "image": "x.png", "images": ["y.png"]},
            "malformed-messages",
            'both "image" and "images"',
        ),
        ({"instruction": "<image>", "output": "b"}, "placeholder-mismatch", "but 0 entries"),
        ({"instruction": "a", "output": "b", "kto_tag": False}, "not-for-training", "judgement"),
    ],
)
def test_what_cannot_be_mapped_is_named(
    tmp_path: Path, row: dict[str, Any], rule: str, words: str
) -> None:
    finding = refused("alpaca", tmp_path, row)
    assert finding.rule == rule
    assert words in finding.message


def test_the_whole_row_as_one_text_is_no_other_key(tmp_path: Path) -> None:
    row = {"instruction": "Name the animal.", "output": "A cat."}
    (made,) = read("alpaca", tmp_path, row | {"text": "Q: Name the animal.\nA: A cat."})
    assert said(made) == [("user", "Name the animal."), ("assistant", "A cat.")]
    assert made.remarks == ()
    (made,) = read("alpaca", tmp_path, row | {"text": "Q: Name the animal.\nA: A dog."})
    assert [one.words for one in made.remarks] == ['"text"']
