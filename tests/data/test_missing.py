"""Values that stand for a missing one: absent where that is safe, else named."""

from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import read, refused, said
from tests.data.test_quality import distinct, found
from tests.rows import chat, picture

NAN = float("nan")


@pytest.mark.parametrize(
    "value", [None, "", [], {}, "[]", [None], [""], [{"bytes": None, "path": None}]]
)
def test_no_images_are_no_images_however_they_are_written(tmp_path: Path, value: Any) -> None:
    rows = [chat("a", "b") | {key: value} for key in ("images", "image", "videos")]
    for made in read("messages", tmp_path, *rows):
        assert (list(made.images), list(made.videos)) == ([], [])


@pytest.mark.parametrize("value", [None, "", [], {}, "[]", "{}", "null", " "])
@pytest.mark.parametrize("format", ["messages", "swift", "trl"])
def test_no_tools_are_no_tools_however_they_are_written(
    tmp_path: Path, format: str, value: Any
) -> None:
    (made,) = read(format, tmp_path, chat("a", "b") | {"tools": value})
    assert made.tools is None


@pytest.mark.parametrize("value", [None, "", [], {}, "[]", "{}", "null", " "])
def test_no_calls_are_not_given_to_the_template(tmp_path: Path, value: Any) -> None:
    row = chat("a", "b")
    row["messages"][1]["tool_calls"] = value
    (made,) = read("messages", tmp_path, row)
    assert made.messages[1] == {"role": "assistant", "content": "b"}


def test_nan_in_a_key_that_is_not_read_is_absent(tmp_path: Path) -> None:
    row = chat([{"type": "text", "text": "a", "notes": NAN}], "b")
    row["messages"][1] |= {"mood": NAN, "timestamp": NAN}
    (made,) = read("messages", tmp_path, row)
    assert (made.remarks, made.messages[1]) == ((), {"role": "assistant", "content": "b"})
    (made,) = read("messages", tmp_path, chat("a", "b") | {"notes": NAN, "system": NAN})
    assert made.remarks == ()
    row = {"instruction": "a", "output": "b", "rationale": NAN, "id": NAN}
    assert said(read("alpaca", tmp_path, row)[0]) == [("user", "a"), ("assistant", "b")]


PANDAS = "is NaN, which pandas writes for a missing value"


@pytest.mark.parametrize(
    ("format", "row", "words"),
    [
        ("messages", chat("a", "b") | {"images": NAN}, f'"images" {PANDAS}: write null'),
        ("messages", chat("a", "b") | {"image": NAN}, f'"image" {PANDAS}: write null'),
        ("messages", chat("a", "b") | {"tools": NAN}, f'"tools" {PANDAS}: write null'),
        ("messages", chat("a", "b") | {"images": "None"}, '"images" is the text "None", which Py'),
        ("messages", chat("a", "b") | {"tools": "NULL"}, '"tools" is the text "NULL"'),
        ("messages", chat("a", "b") | {"images": [NAN]}, f'entry 1 of "images" {PANDAS}'),
        ("messages", chat("a", NAN), f'"content" of turn 2 {PANDAS}'),  # type: ignore[arg-type]
        ("messages", chat(NAN, "b"), f'"content" of turn 1 {PANDAS}'),
        (
            "messages",
            chat([{"type": "text", "text": NAN}], "b"),
            '"text" of a part of content is NaN',
        ),
        ("messages", chat([{"type": "image", "image": "nan"}], "b"), '"image" of a part'),
        ("llava", {"conversations": [{"from": "gpt", "value": NAN}]}, f'"value" {PANDAS}'),
        ("alpaca", {"instruction": "a", "input": NAN, "output": "b"}, f'"input" {PANDAS}'),
        ("alpaca", {"instruction": "a", "output": NAN}, f'"output" {PANDAS}'),
        ("swift", {"query": "a", "response": NAN}, f'"response" {PANDAS}'),
        ("swift", chat("a", "b") | {"tools": "None"}, '"tools" is the text "None"'),
        ("trl", chat("a", "b") | {"images": NAN}, f'"images" {PANDAS}'),
        (
            "cauldron",
            {"images": NAN, "texts": [{"user": "a", "assistant": "b"}]},
            f'"images" {PANDAS}',
        ),
    ],
)
def test_a_value_that_stands_for_a_missing_one_is_named(
    tmp_path: Path, format: str, row: dict[str, Any], words: str
) -> None:
    more = {"texts": "turns"} if format == "cauldron" else {}
    finding = refused(format, tmp_path, row, **more)
    assert finding.rule == "malformed-messages"
    assert words in finding.message


def test_an_image_that_is_missing_among_others_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    row = chat("<image>?", "b") | {"images": ["a.png", None]}
    assert 'entry 2 of "images" is empty' in refused("messages", tmp_path, row).message


@pytest.mark.parametrize("key", ["tool_calls", "weight", "loss_mask", "reasoning_content"])
def test_a_missing_value_in_a_message_is_named(tmp_path: Path, key: str) -> None:
    row = chat("a", "b")
    row["messages"][1][key] = NAN
    assert f'turn 2: "{key}" {PANDAS}' in refused("messages", tmp_path, row).message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (chat("nan", "b"), 'the text "nan" of the user in 1 (train.jsonl:4)'),
        (chat("None", "b"), 'the text "None" of the user'),
        (chat("a", "nan"), 'the text "nan" of the assistant'),
        (
            {"messages": [{"role": "system", "content": "None"}, *chat("a", "b")["messages"]]},
            'the text "None" of the system',
        ),
    ],
)
def test_a_word_in_the_place_of_a_missing_text_is_a_warning(
    tmp_path: Path, row: Any, words: str
) -> None:
    (one,) = found(tmp_path, train=[*distinct(3), row])
    assert (one.rule, one.severity) == ("missing-as-text", "warning")
    assert words in one.message


def test_an_input_or_system_that_is_a_word_for_nothing_is_remarked_on(tmp_path: Path) -> None:
    row = {"instruction": "a", "input": "None", "output": "b", "system": "nan"}
    (made,) = read("alpaca", tmp_path, row)
    assert [one.rule for one in made.remarks] == ["missing-as-text"] * 2
    assert '"input" as the text "None", which Python writes' in made.remarks[0].words
    assert made.remarks[1].words == 'the text "nan" of the system'


def test_none_may_be_an_answer_and_a_reply(tmp_path: Path) -> None:
    row = {"messages": [*chat("Which?", "None")["messages"], *chat("None", "NaN")["messages"]]}
    (made,) = read("messages", tmp_path, row)
    assert made.remarks == ()


@pytest.mark.parametrize("word", ["none", "N/A", "null", "NA", "nil", "-", "None"])
def test_a_word_for_no_picture_is_no_name(tmp_path: Path, word: str) -> None:
    alone = [chat("?", "b") | {"image": word}] if word != "null" else []  # JSON of nothing
    for row in (
        chat("<image>?", "b") | {"images": [word]},
        chat([{"type": "image", "image": word}], "b"),
        *alone,
    ):
        finding = refused("messages", tmp_path, row)
        assert finding.rule == "malformed-messages"
        assert f'is the text "{word}", which' in finding.message


@pytest.mark.parametrize("pair", [None, [], [None, None], ["", ""], [NAN, NAN], ["", None]])
def test_a_pair_of_nothing_in_a_history_is_absent(tmp_path: Path, pair: Any) -> None:
    for format, names in (("alpaca", ("instruction", "output")), ("swift", ("query", "response"))):
        row = dict(zip(names, ("a", "b"), strict=True)) | {"history": [["q", "r"], pair]}
        (made,) = read(format, tmp_path, row)
        assert [text for _, text in said(made)] == ["q", "r", "a", "b"]


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (["q", None], 'no answer: "history[1][1]" is null'),
        (["q", NAN], f'no answer: "history[1][1]" {PANDAS}'),
        ([None, "r"], '"history[1][0]" must be text; here it is null'),
        ([NAN, "r"], f'"history[1][0]" {PANDAS}'),
    ],
)
def test_half_a_pair_of_a_history_is_named(tmp_path: Path, pair: Any, words: str) -> None:
    row = {"instruction": "a", "output": "b", "history": [["q", "r"], pair]}
    assert words in refused("alpaca", tmp_path, row).message
