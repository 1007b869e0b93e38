from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import read, refused, said
from tests.rows import chat, picture


def test_a_completion_is_learnt_and_an_answer_inside_the_prompt_is_not(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    asked = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Sure?"},
    ]
    answer = [{"role": "assistant", "content": "Yes."}]
    row, whole = read(
        "trl",
        tmp_path,
        {"prompt": asked, "completion": answer, "images": ["a.png"]},
        chat("a", "b"),
    )
    assert [message["role"] for message in row.messages] == ["user", "assistant"] * 2
    assert list(row.supervised()) == [3]
    assert row.images == [str(tmp_path / "a.png")]
    assert said(whole) == [("user", "a"), ("assistant", "b")]
    assert list(whole.supervised()) == [1]


def test_images_without_a_place_stand_before_the_first_question_as_in_trl(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    asked = [{"role": "system", "content": "Look."}, {"role": "user", "content": "Who?"}]
    record = {"prompt": asked, "completion": [{"role": "assistant", "content": "A cat."}]}
    (row,) = read("trl", tmp_path, record | {"images": ["a.png", "b.png"]})
    ours = [[part["type"] for part in each["content"]] for each in row.messages[1:2]]
    data_utils = pytest.importorskip("trl.data_utils")
    theirs = data_utils.prepare_multimodal_messages([*asked, *record["completion"]], [0, 1])
    assert ours == [[part["type"] for part in theirs[1]["content"]]] == [["image"] * 2 + ["text"]]
    assert len(row.images) == 2


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        ({"prompt": "a", "completion": "b"}, "not-for-training", "without roles"),
        ({"prompt": [], "completion": []}, "malformed-messages", '"prompt" must be a list'),
        ({"prompt": [{"role": "user", "content": "a"}]}, "malformed-messages", '"completion" must'),
        ({"prompt": [], "chosen": ["a"], "rejected": ["b"]}, "not-for-training", "pair"),
        (chat("a", "b") | {"prompt": []}, "malformed-messages", '"messages" next to'),
        (chat("a", "b") | {"chat_template_kwargs": {"x": 1}}, "malformed-messages", "kwargs"),
    ],
)
def test_what_cannot_be_mapped_is_named(
    tmp_path: Path, row: dict[str, Any], rule: str, words: str
) -> None:
    finding = refused("trl", tmp_path, row)
    assert finding.rule == rule
    assert words in finding.message
