"""Rows that are converted are read as they were, or refused and counted."""

import base64
import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import open_rows
from tests.rows import chat, picture, visual_rows, write_rows
from vtool.data import write
from vtool.data.convert import Conversion, convert_rows
from vtool.data.formats.messages import Messages
from vtool.data.row import Row
from vtool.diagnostics import Diagnostic, Findings

KINDS = ("jsonl", "parquet", "arrow")


def content(image: Any, folder: Path) -> bytes:
    """The bytes of an image, wherever they are."""
    if isinstance(image, bytes):
        return image
    if image.startswith("data:"):
        return base64.b64decode(image.partition(",")[2])
    return (folder / image).read_bytes()


def seen(row: Row, folder: Path) -> Any:
    """Return everything that a model is given of a row."""
    videos = [
        (
            video.fps,
            [content(each, folder) for each in video.source]
            if not isinstance(video.source, str)
            else content(video.source, folder),
        )
        for video in row.videos
    ]
    images = [content(each, folder) for each in row.images]
    return list(row.messages), images, videos, list(row.tools or ())


def all_of(path: Path, format: str = "messages") -> list[Any]:
    rows = open_rows(format, path)
    return [seen(rows.row(index), path.parent) for index in range(len(rows))]


def failing(path: Path, out: Path, *settings: str, kind: str | None = None) -> Diagnostic:
    with pytest.raises(Findings) as caught:
        convert_rows(str(path), out, kind, settings)
    assert caught.value.fatal
    return caught.value.diagnostics[0]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_images_and_videos_are_read_as_they_were_from_another_folder(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    rows = visual_rows(tmp_path / "in")
    still = base64.b64encode(picture(tmp_path / "b.png", seed=9).read_bytes()).decode()
    rows.append(chat("<image>?", "b") | {"images": [f"data:image/png;base64,{still}"]})
    path = write_rows(tmp_path / "in/rows.jsonl", rows)
    out = tmp_path / f"out/rows.{kind}"
    made = convert_rows(str(path), out)
    assert (made.rows, made.written, made.refused) == (len(rows), len(rows), ())
    assert all_of(out) == all_of(path)
    assert sorted(each.name for each in out.parent.iterdir()) == [out.name]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_weights_and_pictures_inside_are_kept(tmp_path: Path, kind: str) -> None:
    call = {"function": {"name": "look", "arguments": {"n": None, "text": "ü"}}}
    first = chat("<image>a", "b")["messages"]
    first[1]["weight"] = 0
    asked = [*chat("c", "d")["messages"], {"role": "assistant", "content": None}]
    asked[2]["tool_calls"] = [call]
    asked.append({"role": "tool", "content": "4", "name": "look", "tool_call_id": "x1"})
    image = [{"bytes": picture(tmp_path / "a.png").read_bytes(), "path": "gone.png"}]
    source = tmp_path / "rows.parquet"
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"messages": [first], "images": [image]}), source)
    lines = write_rows(
        tmp_path / "rows.jsonl", [{"messages": asked, "tools": [{"name": "look", "x": {"y": []}}]}]
    )
    for path in (source, lines):
        out = tmp_path / f"{path.suffix[1:]}-out.{kind}"
        assert convert_rows(str(path), out).refused == ()
        assert all_of(out) == all_of(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_the_column_enable_thinking_is_kept(tmp_path: Path, kind: str) -> None:
    values = [True, False, None]
    rows = [chat("a", "b") | {"enable_thinking": value} for value in values]
    out = tmp_path / f"out.{kind}"
    made = convert_rows(str(write_rows(tmp_path / "rows.jsonl", rows)), out)
    assert made.read["enable_thinking"] == 2
    found = Messages(str(out))
    assert [found.row(index).thinking for index in range(3)] == values


def test_groups_are_small_enough_to_be_read_for_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(write, "GROUP_ROWS", 3)
    path = write_rows(tmp_path / "rows.jsonl", [chat(f"a{n}", "b") for n in range(8)])
    convert_rows(str(path), tmp_path / "rows.parquet")
    found = pq.ParquetFile(tmp_path / "rows.parquet").metadata
    assert [found.row_group(n).num_rows for n in range(found.num_row_groups)] == [3, 3, 2]


def test_keys_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    rows = [
        {"instruction": "a", "output": "b", "id": 1, "why": "c"},
        {"instruction": "a", "input": "x", "output": "b", "id": 2, "why": ""},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    made = convert_rows(str(path), tmp_path / "out.jsonl", None, ["format=alpaca", "ignore=[why]"])
    assert made == Conversion(
        "2 rows of Alpaca instructions",
        2,
        2,
        {"instruction": 2, "output": 2, "input": 1},
        {"id": 2},
        {"why": 1},
        (),
    )
    assert [row[0][0]["content"] for row in all_of(tmp_path / "out.jsonl")] == ["a", "a\nx"]


def test_a_file_is_made_only_where_no_more_rows_are_refused_than_may_be(tmp_path: Path) -> None:
    rows = [chat("a", "b"), chat("<image>", "b"), '{"messages"', chat("c", "d")]
    path, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    made = convert_rows(str(path), out, most_dropped=1)
    assert (made.written, [each.rule for each in made.refused]) == (
        0,
        ["placeholder-mismatch", "broken-row"],
    )
    assert "rows.jsonl:2: " in made.refused[0].message
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.jsonl"]
    assert convert_rows(str(path), out, most_dropped=2).written == 2
    assert [row[0][0]["content"] for row in all_of(out)] == ["a", "c"]


def test_content_that_columns_cannot_give_back_is_refused_there_and_kept_in_lines(
    tmp_path: Path,
) -> None:
    parts = chat([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "c")
    named = chat("a", "b")
    named["messages"][1]["mood"] = "glad"
    path = write_rows(tmp_path / "rows.jsonl", [parts, named])
    made = convert_rows(str(path), tmp_path / "rows.parquet")
    first, second = made.refused
    assert "a column cannot have text and parts: write JSON lines" in first.message
    assert '"mood", for which there is no column' in second.message
    assert convert_rows(str(path), tmp_path / "out.jsonl").refused == ()
    assert all_of(tmp_path / "out.jsonl") == all_of(path)


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [chat("a", "b")])
    (tmp_path / "out.jsonl").write_text("mine")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
    for name in ("out.jsonl", "link.jsonl", "rows.jsonl"):
        assert failing(path, tmp_path / name).rule == "rows-not-written"
    assert (tmp_path / "out.jsonl").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert failing(path, tmp_path / "none/out.jsonl").rule == "rows-not-written"


def test_a_file_that_comes_up_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_rows(tmp_path / "rows.jsonl", [chat("a", "b")]), tmp_path / "out.jsonl"
    close = write.LinesWriter.close

    def closing(writer: Any) -> None:
        close(writer)
        out.write_text("mine")

    monkeypatch.setattr(write.LinesWriter, "close", closing)
    assert failing(path, out).rule == "rows-not-written"
    assert out.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


def test_what_a_killed_process_has_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    path, out = write_rows(tmp_path / "rows.jsonl", [chat("a", "b")]), tmp_path / "out.jsonl"
    killed = subprocess.Popen(["true"])
    killed.wait()
    left, other = (f".out.jsonl.{number}.part" for number in (killed.pid, os.getppid()))
    for name in (left, other, ".mine.part"):
        (tmp_path / name).write_text("{")
    assert convert_rows(str(path), out).beside is None
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"rows.jsonl", "out.jsonl", other, ".mine.part"}


def test_a_name_that_cannot_be_removed_is_a_note_beside_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_rows(tmp_path / "rows.jsonl", [chat("a", "b")]), tmp_path / "out.jsonl"

    def denied(file: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "unlink", denied)
    made = convert_rows(str(path), out)
    assert made.written == 1
    assert made.beside is not None
    assert (made.beside.severity, ".part cannot be removed" in made.beside.message) == (
        "note",
        True,
    )
    assert all_of(out) == all_of(path)


@pytest.mark.parametrize(
    ("out", "kind", "settings", "rule", "words"),
    [
        ("out.txt", None, (), "unknown-choice", "does not end in .jsonl, .parquet, .arrow"),
        ("out.jsonl", "parquet", (), "unknown-choice", "does not end in .parquet"),
        ("out.jsonl", None, ("format=lava",), "unknown-choice", "not 'lava'"),
        ("out.jsonl", None, ("imagefolder=x",), "unknown-key", "has no setting imagefolder"),
        ("out.jsonl", None, ("format=cauldron",), "missing-key", "needs texts=…"),
        ("out.jsonl", None, ("format=swift", "ignore=7"), "wrong-type", "ignore=7"),
    ],
)
def test_what_cannot_be_meant_is_reported(
    tmp_path: Path, out: str, kind: str | None, settings: tuple[str, ...], rule: str, words: str
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [chat("a", "b")])
    found = failing(path, tmp_path / out, *settings, kind=kind)
    assert found.rule == rule
    assert words in found.message


def test_parquet_that_is_named_json_is_converted(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.jsonl"
    pq.write_table(pa.table({"messages": [chat("a", "b")["messages"]]}), path)
    assert convert_rows(str(path), tmp_path / "rows-lines.jsonl").written == 1
    (line,) = (tmp_path / "rows-lines.jsonl").read_text().splitlines()
    assert json.loads(line) == chat("a", "b")
