import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.rows import chat, picture, write_rows
from vtool.data.messages import Messages
from vtool.diagnostics import Findings


def rule_of(path: Path, row: Any) -> tuple[str, str]:
    with pytest.raises(Findings) as caught:
        Messages(str(write_rows(path / "rows.jsonl", [row]))).row(0)
    (finding,) = caught.value.diagnostics
    assert finding.origin is not None
    assert finding.origin.line == 1
    return finding.rule, finding.message


def test_text_content_stays_as_it_is(tmp_path: Path) -> None:
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat("Hi", "Hello")]))).row(0)
    assert row.messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert row.images == []


def test_image_tags_take_the_listed_images_in_order(tmp_path: Path) -> None:
    names = [picture(tmp_path / name).name for name in ("a.png", "b.png")]
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat("x<image>y<image>", "z") | {"images": names}]))).row(0)
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
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat([part, {"type": "text", "text": "?"}], "!")]))).row(0)
    assert row.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "?"}]
    assert row.images == [str(tmp_path / "a.png")]


def test_parts_without_a_path_take_the_listed_images(tmp_path: Path) -> None:
    names = [picture(tmp_path / name).name for name in ("a.png", "b.png")]
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Same?"}]
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat(content, "No") | {"images": names}]))).row(0)
    assert [Path(image).name for image in row.images] == names


def test_a_data_address_carries_its_picture(tmp_path: Path) -> None:
    code = base64.b64encode(picture(tmp_path / "a.png").read_bytes()).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{code}"}}
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [chat([part], "!")]))).row(0)
    assert row.images[0].startswith("data:image/png")


def test_keys_that_the_template_may_use_are_kept(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    record = {"messages": [{"role": "user", "content": "?"}, call], "tools": [{"name": "look"}]}
    row = Messages(str(write_rows(tmp_path / "rows.jsonl", [record]))).row(0)
    assert row.messages[1] == call
    assert row.tools == [{"name": "look"}]


def test_blank_lines_are_no_rows_and_line_numbers_stay_true(tmp_path: Path) -> None:
    source = Messages(str(write_rows(tmp_path / "rows.jsonl", ["", chat("a", "b"), "   ", chat("c", "d")])))
    assert len(source) == 2
    assert [source.name(index) for index in range(2)] == ["rows.jsonl:2", "rows.jsonl:4"]
    assert source.row(1).messages[0]["content"] == "c"


def test_the_digest_is_of_the_whole_file(tmp_path: Path) -> None:
    import hashlib

    path = write_rows(tmp_path / "rows.jsonl", [chat("a", "b"), "", chat("c", "d")])
    assert Messages(str(path)).digest == hashlib.sha256(path.read_bytes()).hexdigest()


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
        ("[1, 2]", "broken-row", "list"),
        ({"text": "Hi"}, "malformed-messages", '"messages"'),
        ({"messages": []}, "malformed-messages", '"messages"'),
        ({"messages": [{"role": "human", "content": "Hi"}]}, "malformed-messages", "human"),
        ({"messages": [{"role": "user", "content": 7}]}, "malformed-messages", "int"),
        ({"messages": [{"role": "user", "content": None}]}, "malformed-messages", "NoneType"),
        (chat([{"type": "audio", "audio": "a.wav"}], "b"), "malformed-messages", "audio"),
        (chat("a", "b") | {"videos": ["a.mp4"]}, "malformed-messages", "videos"),
        (chat("<image>?", "b"), "placeholder-mismatch", "1 image placeholders, but 0"),
        (chat("<image>?", "b") | {"images": ["missing.png"]}, "missing-image", "missing.png"),
        (chat([{"type": "image", "image": "https://example.org/a.png"}], "b"), "missing-image", "not fetched"),
        (chat([{"type": "image", "image": 7}], "b"), "malformed-messages", "7"),
    ],
)
def test_what_cannot_be_understood_is_named(tmp_path: Path, row: Any, rule: str, words: str) -> None:
    found, message = rule_of(tmp_path, row)
    assert found == rule
    assert words in message


def test_more_images_than_placeholders_is_refused(tmp_path: Path) -> None:
    names = [picture(tmp_path / name).name for name in ("a.png", "b.png")]
    found, message = rule_of(tmp_path, chat("<image>?", "b") | {"images": names})
    assert found == "placeholder-mismatch"
    assert "1 image placeholders, but 2" in message
