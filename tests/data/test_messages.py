import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.rows import chat, picture, write_rows
from vtool.data.formats.messages import Messages
from vtool.data.messages_layout import parse_row
from vtool.diagnostics import Findings


def rule_of(path: Path, row: Any) -> tuple[str, str]:
    with pytest.raises(Findings) as caught:
        Messages(str(write_rows(path / "rows.jsonl", [row]))).row(0)
    (finding,) = caught.value.diagnostics
    assert finding.origin is not None
    assert finding.origin.line == 1
    return finding.rule, finding.message


def turned(keys: dict[str, Any]) -> dict[str, Any]:
    """A chat whose assistant's message has more keys."""
    question, answer = chat("a", "b")["messages"]
    return {"messages": [question, answer | keys]}


def test_text_content_stays_as_it_is(tmp_path: Path) -> None:
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat("Hi", "Hello")]))).row(0)
    assert row.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert row.images == []


def test_image_tags_take_the_listed_images_in_order(tmp_path: Path) -> None:
    names = [picture(tmp_path / name).name for name in ("a.png", "b.png")]
    row = Messages(
        str(
            write_rows(tmp_path / "rows.jsonl", [chat("x<image>y<image>", "z") | {"images": names}])
        )
    ).row(0)
    assert row.messages[0]["content"] == [
        {"type": "text", "text": "x"},
        {"type": "image"},
        {"type": "text", "text": "y"},
        {"type": "image"},
    ]
    assert row.images == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "a.png"},
        {"type": "image", "path": "a.png"},
        {"type": "image", "url": "file://a.png"},
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image_url", "image_url": "a.png"},
    ],
)
def test_every_layout_of_an_image_part_is_understood(tmp_path: Path, part: dict[str, Any]) -> None:
    picture(tmp_path / "a.png")
    row = Messages(
        str(write_rows(tmp_path / "rows.jsonl", [chat([part, {"type": "text", "text": "?"}], "!")]))
    ).row(0)
    assert row.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "?"}]
    assert row.images == [str(tmp_path / "a.png")]


def test_parts_without_a_path_take_the_listed_images(tmp_path: Path) -> None:
    names = [picture(tmp_path / name).name for name in ("a.png", "b.png")]
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Same?"}]
    row = Messages(
        str(write_rows(tmp_path / "rows.jsonl", [chat(content, "No") | {"images": names}]))
    ).row(0)
    assert [Path(image).name for image in row.images] == names


def test_a_data_address_carries_its_picture(tmp_path: Path) -> None:
    code = base64.b64encode(picture(tmp_path / "a.png").read_bytes()).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{code}"}}
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat([part], "!")]))).row(0)
    assert row.images[0].startswith("data:image/png")


def test_keys_that_the_template_may_use_are_kept(tmp_path: Path) -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "look", "arguments": {}}}],
    }
    record = {"messages": [{"role": "user", "content": "?"}, call], "tools": [{"name": "look"}]}
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [record]))).row(0)
    assert row.messages[1] == call
    assert row.tools == [{"name": "look"}]


def test_blank_lines_are_no_rows_and_line_numbers_stay_true(tmp_path: Path) -> None:
    source = Messages(
        str(write_rows(tmp_path / "rows.jsonl", ["", chat("a", "b"), "   ", chat("c", "d")]))
    )
    assert len(source) == 2
    assert [source.name(index) for index in range(2)] == ["rows.jsonl:2", "rows.jsonl:4"]
    assert source.row(1).messages[0]["content"] == "c"


def test_the_digest_is_of_the_whole_file(tmp_path: Path) -> None:
    import hashlib

    path = write_rows(tmp_path / "rows.jsonl", [chat("a", "b"), "", chat("c", "d")])
    assert Messages(str(path)).describe()["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_line_cut_off_is_a_broken_row_with_its_column(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [chat("a", "b"), json.dumps(chat("a", "b"))[:30]])
    with pytest.raises(Findings) as caught:
        Messages(str(path)).row(1)
    (finding,) = caught.value.diagnostics
    assert finding.rule == "broken-row"
    assert finding.origin is not None
    assert finding.origin.line == 2
    assert finding.origin.column is not None


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        ("7", "broken-row", "is JSON, but no object: 7"),
        ({"text": "Hi"}, "malformed-messages", '"messages"'),
        ({"messages": []}, "malformed-messages", '"messages"'),
        ({"messages": [{"role": "human", "content": "Hi"}]}, "malformed-messages", "human"),
        ({"messages": [{"role": "user", "content": 7}]}, "malformed-messages", "here it is 7"),
        ({"messages": "x" * 300}, "malformed-messages", "at least one message; here it is 'xxx"),
        ({"messages": [{"role": "user", "content": None}]}, "malformed-messages", "is null"),
        (chat("a", None), "malformed-messages", 'has no answer: "content" is null or not there'),
        (chat("a", "b") | {"images": {"a": 1}}, "malformed-messages", "here it is {'a': 1}"),
        (
            {"messages": [{"role": "no\x1b[31m", "content": "a"}]},
            "malformed-messages",
            "of turn 1 must be one of system, user, assistant, tool; here it is 'no\\x1b[31m'",
        ),
        (chat([{"type": "audio", "audio": "a.wav"}], "b"), "malformed-messages", "audio"),
        (
            chat("a", "b") | {"videos": ["a.mp4"]},
            "placeholder-mismatch",
            '0 video placeholders, but 1 entry in "videos"',
        ),
        (chat("<image>?", "b"), "placeholder-mismatch", "1 image placeholder, but 0"),
        (chat("<image>?", "b") | {"images": ["missing.png"]}, "missing-image", "missing.png"),
        (
            chat([{"type": "image", "image": "https://example.org/a.png"}], "b"),
            "missing-image",
            "not fetched",
        ),
        (chat([{"type": "image", "image": 7}], "b"), "malformed-messages", "7"),
        (turned({"weight": 2}), "malformed-messages", '"weight" is 0 or 1; here it is 2'),
        (turned({"weight": True}), "malformed-messages", "here it is true"),
        (turned({"weight": "0"}), "malformed-messages", "here it is '0'"),
        (turned({"loss": 0.5}), "malformed-messages", '"loss"'),
        (turned({"image": "a.png"}), "malformed-messages", '"image"'),
        (turned({"tool_calls": "look()"}), "malformed-messages", '"tool_calls"'),
        (
            {"messages": [{"role": "user", "content": "a", "weight": 1}]},
            "malformed-messages",
            "only turns of the assistant",
        ),
        (chat("a", "b") | {"image": "a.png"}, "placeholder-mismatch", "0 image placeholders"),
        (chat("a", "b") | {"video": "a.mp4"}, "placeholder-mismatch", "0 video placeholders"),
        (
            chat("<image>", "b") | {"image": "a.png", "images": ["a.png"]},
            "malformed-messages",
            'both "image" and "images"',
        ),
        (chat("<image>", "b") | {"Image": "a.png"}, "malformed-messages", 'has "Image"'),
        (chat("a", "b") | {"audio": "a.wav"}, "malformed-messages", 'has "audio"'),
        (chat("a", "b") | {"system": "Be brief."}, "malformed-messages", 'has "system"'),
        (
            {"conversations": [{"from": "human", "value": "a"}]},
            "malformed-messages",
            'has "conversations"',
        ),
        (chat("a", "b") | {"tools": "xx"}, "malformed-messages", "'xx'"),
        (chat("a", "b") | {"tools": ["xx"]}, "malformed-messages", "['xx']"),
        (
            chat("<video>?", "b"),
            "placeholder-mismatch",
            '1 video placeholder, but 0 entries in "videos"',
        ),
        (chat([{"type": "text", "text": "?<audio>"}], "b"), "malformed-messages", "<audio>"),
        (chat("a", "Here: <image>"), "image-in-answer", "turn 2"),
        (chat("a", "half \ude00"), "malformed-messages", "turn 2 has a lone surrogate, \\ude00"),
        (
            chat("a", "b") | {"tools": [{"name": "\ud800"}]},
            "malformed-messages",
            '"tools" has a lone surrogate',
        ),
        (chat("<image>", "b") | {"images": ["q" * 5000]}, "missing-image", "qqq"),
        ('{"messages": ' + "[" * 100_000, "broken-row", "nested too deeply"),
    ],
)
def test_what_cannot_be_understood_is_named(
    tmp_path: Path, row: Any, rule: str, words: str
) -> None:
    found, message = rule_of(tmp_path, row)
    assert found == rule
    assert words in message


def test_more_images_than_placeholders_is_refused(tmp_path: Path) -> None:
    names = [picture(tmp_path / name).name for name in ("a.png", "b.png")]
    found, message = rule_of(tmp_path, chat("<image>?", "b") | {"images": names})
    assert found == "placeholder-mismatch"
    assert "1 image placeholder, but 2" in message


def test_an_image_part_in_an_answer_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    assert (
        rule_of(tmp_path, chat("a", [{"type": "image", "image": "a.png"}]))[0] == "image-in-answer"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row",
    [
        chat("a", "b")
        | {
            "id": 7,
            "source": "web",
            "metadata": {"image": "a.png"},
            "prompt": "a",
            "note": "\ud800",
        },
        chat("a", "b") | {"image": None, "videos": [], "audio": "", "tools": None, "images": None},
        chat("a", "Use the <video> element.") | {"language": "en"},
        turned({"weight": 1}),
        turned({"weight": None, "loss": None, "images": None}),
        chat("😀 → \ud83d\ude00", "b"),
    ],
)
def test_what_carries_nothing_is_let_be(tmp_path: Path, row: Any) -> None:
    assert len(Messages(str(write_rows(tmp_path / "rows.jsonl", [row]))).row(0).messages) == 2


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "\ufeff" + json.dumps(chat("a", "b")) + "\n", encoding="utf-8"
    )
    assert Messages(str(tmp_path / "rows.jsonl")).row(0).messages[0]["content"] == "a"


def test_rows_that_go_over_several_lines_are_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text(json.dumps(chat("a", "b"), indent=1))
    with pytest.raises(Findings) as caught:
        Messages("rows.json")
    (finding,) = caught.value.diagnostics
    assert (finding.rule, finding.help) == ("broken-row", "jq -c . rows.json > rows.jsonl")


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_of_an_array_are_those_of_lines(tmp_path: Path, indent: int | None) -> None:
    rows = [chat("a", "b"), chat("c\n", "d ]},{")]
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=indent))
    array = Messages(str(tmp_path / "rows.json"))
    lines = Messages(str(write_rows(tmp_path / "rows.jsonl", rows)))
    assert [array.row(n).messages for n in (0, 1)] == [lines.row(n).messages for n in (0, 1)]
    assert array.name(1) == "rows.json row 2"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({**chat("a", "b"), "Images": ["a.png"]}, '"Images", which is not read'),
        ({**chat("a", "b"), "message": [1]}, '"message", which is not read'),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b", "Weight": 0},
                ]
            },
            '"Weight", which is not read',
        ),
        (
            chat([{"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}], "b"),
            '"detail", which is not read',
        ),
        (
            chat([{"type": "image", "image": "a.png", "min_pixels": 9}], "b"),
            '"min_pixels", which is not read',
        ),
        (chat([{"type": "text", "text": "a", "weight": 0}], "b"), '"weight", which is not read'),
        (chat("<IMAGE>a", "b"), "<IMAGE>, which would be read as plain text"),
        (chat("<|image|>a", "b"), "<|image|>, which would be read as plain text"),
        (chat("<image_1>a", "b"), "<image_1>, which would be read as plain text"),
    ],
)
def test_what_is_nearly_read_is_refused_by_name(
    tmp_path: Path, record: dict[str, Any], words: str
) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(Findings, match="malformed-messages") as caught:
        Messages(str(write_rows(tmp_path / "rows.jsonl", [record]))).row(0)
    assert words in str(caught.value)


def test_keys_that_carry_nothing_are_let_be(tmp_path: Path) -> None:
    record = {
        **chat([{"type": "image_url", "image_url": {"url": "a.png", "detail": "auto"}}], "b"),
        "id": 1,
        "source": "x",
        "tool": None,
    }
    picture(tmp_path / "a.png")
    assert len(Messages(str(write_rows(tmp_path / "rows.jsonl", [record]))).row(0).images) == 1


def test_an_image_as_anthropic_writes_it_carries_its_picture(tmp_path: Path) -> None:
    code = base64.b64encode(picture(tmp_path / "a.png").read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": code}
    question = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat(question, "b")]))).row(0)
    assert row.images == [f"data:image/png;base64,{code}"]
    assert row.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "What?"}]


@pytest.mark.parametrize(
    ("source", "rule", "words"),
    [
        ({"type": "url", "url": "https://example.org/a.png"}, "missing-image", "on the web"),
        ({"type": "file", "file_id": "file_1"}, "malformed-messages", "'file_id': 'file_1'"),
        ({"type": "base64", "data": "AAAA"}, "malformed-messages", '"source" of an image is'),
        ({"type": "base64", "media_type": "image/png", "data": 1}, "malformed-messages", "is not"),
        ("a.png", "malformed-messages", "'a.png', which is not read"),
    ],
)
def test_a_source_of_another_kind_is_refused(
    tmp_path: Path, source: Any, rule: str, words: str
) -> None:
    found, message = rule_of(tmp_path, chat([{"type": "image", "source": source}], "b"))
    assert found == rule
    assert words in message


@pytest.mark.parametrize("value", [True, False, None])
def test_the_column_enable_thinking_is_kept_for_the_template(tmp_path: Path, value: Any) -> None:
    rows = [chat("a", "b") | {"enable_thinking": value}]
    assert Messages(str(write_rows(tmp_path / "rows.jsonl", rows))).row(0).thinking is value


def test_enable_thinking_that_is_no_yes_or_no_is_refused(tmp_path: Path) -> None:
    rule, message = rule_of(tmp_path, chat("a", "b") | {"enable_thinking": "no"})
    assert (rule, '"enable_thinking" is true or false' in message) == ("malformed-messages", True)


@pytest.mark.parametrize("given", ["a.png", ["a.png"]])
def test_one_image_may_be_given_without_a_list(tmp_path: Path, given: Any) -> None:
    picture(tmp_path / "a.png")
    one = parse_row(chat("<image>What?", "b") | {"image": given}, "r", tmp_path)
    assert one == parse_row(chat("<image>What?", "b") | {"images": ["a.png"]}, "r", tmp_path)


def test_parts_of_content_as_json_text_are_refused(tmp_path: Path) -> None:
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]
    file = write_rows(tmp_path / "rows.jsonl", [chat(json.dumps(parts), "b")])
    with pytest.raises(Findings, match='"content" of turn 1 is text: parts of content as JSON'):
        Messages(str(file)).row(0)
    healthy = [
        chat('Sort [{"type": "b"}, {"type": "a"}]', '[{"type": "a"}, {"type": "b"}]'),
        chat('[{"type": "a", "text": "b"}]', "c"),
        chat("[{not JSON", "c"),
    ]
    reader = Messages(str(write_rows(tmp_path / "rows.jsonl", healthy)))
    assert [len(reader.row(index).messages) for index in range(3)] == [2, 2, 2]


def test_the_picture_beside_rows_that_an_address_has_the_name_of_is_suggested(
    tmp_path: Path,
) -> None:
    picture(tmp_path / "my cat.png")
    for name, help in (("my%20cat.png", "did you mean `my cat.png`?"), ("dog.png", None)):
        row = chat("<image>?", "b") | {"images": [f"https://example.org/photos/{name}?w=5"]}
        with pytest.raises(Findings) as caught:
            Messages(str(write_rows(tmp_path / "rows.jsonl", [row]))).row(0)
        (found,) = caught.value.diagnostics
        assert (found.rule, found.help) == ("missing-image", help)
