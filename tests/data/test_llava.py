import json
from pathlib import Path
from typing import Any

import pytest

from tests.rows import chat, picture, write_rows
from vtool.data.containers import json_array
from vtool.data.formats.llava import Llava
from vtool.data.formats.messages import Messages
from vtool.diagnostics import Findings


def talk(*values: str, **more: Any) -> dict[str, Any]:
    """A row of turns in alternation, with more keys."""
    speakers = ("human", "gpt") * len(values)
    turns = [
        {"from": speaker, "value": value} for speaker, value in zip(speakers, values, strict=False)
    ]
    return {"id": "1", "conversations": turns, **more}


def write_array(path: Path, rows: list[Any], **layout: Any) -> Path:
    path.write_text(json.dumps(rows, **layout))
    return path


def finding_of(path: Path) -> tuple[str, str, str]:
    def last_row() -> None:
        rows = Llava(str(path))
        rows.row(len(rows) - 1)

    with pytest.raises(Findings) as caught:
        last_row()
    (finding,) = caught.value.diagnostics
    return finding.rule, finding.message, str(finding.origin).rpartition("/")[2]


@pytest.mark.parametrize("image", [{"image": "a.png"}, {"image": ["a.png"]}, {"images": ["a.png"]}])
def test_a_row_is_that_of_the_format_messages(tmp_path: Path, image: dict[str, Any]) -> None:
    picture(tmp_path / "a.png")
    rows = [
        talk("<image>\nWhat is it?", "A cat.", "Sure?", "Yes.", **image),
        talk("Hi", "Hello", system="Be brief."),
    ]
    same = [chat("<image>\nWhat is it?", "A cat."), chat("Hi", "Hello")]
    same[0]["messages"] += chat("Sure?", "Yes.")["messages"]
    same[0]["images"] = ["a.png"]
    same[1]["messages"].insert(0, {"role": "system", "content": "Be brief."})
    expected = Messages(str(write_rows(tmp_path / "messages.jsonl", same)))
    for found in (
        Llava(str(write_array(tmp_path / "rows.json", rows))),
        Llava(str(write_rows(tmp_path / "rows.jsonl", rows))),
    ):
        for index in range(2):
            ours, theirs = found.row(index), expected.row(index)
            assert (ours.messages, ours.images) == (theirs.messages, theirs.images)


def test_a_turn_that_is_not_learnt_stays_so(tmp_path: Path) -> None:
    row = talk("a", "b", "c", "d")
    row["conversations"][1]["weight"] = 0
    assert list(Llava(str(write_array(tmp_path / "rows.json", [row]))).row(0).supervised()) == [3]


def test_images_are_in_the_folder_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "coco").mkdir()
    picture(tmp_path / "coco/a.png")
    path = write_array(tmp_path / "rows.json", [talk("<image>?", "b", image="a.png")])
    assert Llava(str(path), image_folder=str(tmp_path / "coco")).row(0).images == [
        str(tmp_path / "coco/a.png")
    ]
    assert finding_of(path)[0] == "missing-image"


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rows_of_an_array_are_found_wherever_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, layout: dict[str, Any], mark: str
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK", chunk)
    texts = ['é "][{}" \\', "日本\n,", "🙂" * 30, ""]
    rows = [talk(text, "b", extra={"a": [1, {"b": []}]}) for text in texts]
    text = mark + "\n " + json.dumps(rows, ensure_ascii=False, **layout) + "\n"
    (tmp_path / "rows.json").write_text(text, encoding="utf-8")
    found = Llava(str(tmp_path / "rows.json"))
    assert [found.record(index) for index in range(len(found))] == rows
    assert [found.name(index) for index in range(4)] == [f"rows.json row {n}" for n in (1, 2, 3, 4)]
    opening = [n for n, line in enumerate(text.split("\n"), 1) if line == "  {"]
    lines = [found.origin(index).line for index in range(4)]
    assert lines == (opening if layout == {"indent": 2} else [None] * 4)


def test_an_array_without_rows_has_none(tmp_path: Path) -> None:
    assert len(Llava(str(write_array(tmp_path / "rows.json", [])))) == 0


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("[{}\n{}]", "at row 2, a comma or the array's end is expected", 2),
        ("[{},\n\n]", "at row 2, Expecting value", 3),
        ('[{},\n{"a": }]', "at row 2, Expecting value", 2),
        ('[{},\n{"a": 1}', "at row 3, a comma or the array's end", 2),
        ("[{}]\n]", "there is more after the array", 1),
        ("[" + "[" * 100_000, "nested too deeply", 1),
    ],
)
@pytest.mark.parametrize("chunk", [2, 10**6])
def test_an_array_that_is_cut_off_or_damaged_is_refused_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str, line: int, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK", chunk)
    (tmp_path / "rows.json").write_text(text)
    rule, message, place = finding_of(tmp_path / "rows.json")
    assert rule == "broken-row"
    assert words in message
    assert place.split(":")[1] == str(line)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(b'[{"id": "caf\xe9"}]')
    assert finding_of(tmp_path / "rows.json")[0] == "broken-row"


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        (7, "broken-row", "rows.json row 2 is JSON, but no object: 7"),
        ({"id": "1"}, "malformed-messages", 'there is no list "conversations"'),
        ({"conversations": []}, "malformed-messages", "with a turn; here it is []"),
        (talk("a", None), "malformed-messages", "turn 2, the assistant's, has no answer"),
        (chat("a", "b"), "malformed-messages", 'there is no list "conversations"'),
        (chat("a", "b") | talk("a", "b"), "malformed-messages", 'and "messages"'),
        ({"conversations": ["a"]}, "malformed-messages", "here it is 'a'"),
        (
            {"conversations": [{"from": "bing", "value": "a"}]},
            "malformed-messages",
            '"from" of turn 1 must be one of system, human, user, gpt, assistant, chatgpt, bot,',
        ),
        ({"conversations": [{"from": [], "value": "a"}]}, "malformed-messages", "here it is []"),
        ({"conversations": [{"from": "human"}]}, "malformed-messages", '"value" of turn 1'),
        (
            {"conversations": [{"from": "human", "value": "a", "content": "b"}]},
            "malformed-messages",
            'turn 1 has "content"',
        ),
        (talk("<image>?", "b"), "placeholder-mismatch", "1 image placeholder, but 0"),
        (talk("?", "b", image="a.png"), "placeholder-mismatch", "0 image placeholders, but 1"),
        (talk("<image>?", "b", image="no.png"), "missing-image", "no.png"),
        (talk("a", "<image>"), "image-in-answer", "turn 2"),
        (talk("a", "b", image="a.png", images=["a.png"]), "malformed-messages", 'both "image"'),
        (talk("a", "b", images="a.png"), "malformed-messages", '"images" must be a list'),
        (talk("a", "b", audio="a.wav"), "malformed-messages", 'has "audio"'),
    ],
)
def test_what_cannot_be_understood_is_named(
    tmp_path: Path, row: Any, rule: str, words: str
) -> None:
    path = write_array(tmp_path / "rows.json", [talk("a", "b"), row], indent=1)
    found, message, place = finding_of(path)
    assert found == rule
    assert words in message
    assert "rows.json row 2" in message
    assert int(place.split(":")[1]) > 2


@pytest.mark.parametrize("speaker", ["gpt", "assistant", "chatgpt", "bot", "model"])
def test_the_names_that_sharegpt_has_for_the_assistant_are_its_turns(
    tmp_path: Path, speaker: str
) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": speaker, "value": "b"}]
    row = Llava(str(write_rows(tmp_path / "rows.jsonl", [{"conversations": turns}]))).row(0)
    assert row.messages == chat("a", "b")["messages"]
