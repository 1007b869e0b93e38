"""`vtool verify` of rows and pictures that are not what they are called."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool
from tests.rows import chat, frames, picture, write_rows
from tests.test_contents import POINTER


def found(folder: Path, file: str, *more: str) -> Iterator[tuple[str, str, str]]:
    done = run_vtool(folder, "verify", file, *more, "--format", "json")
    (result,) = json.loads(done.stdout)["results"]
    for each in result["findings"]:
        yield each["rule"], each["message"], each.get("help", "")


def shows(*names: str) -> list[Any]:
    return [chat("<image>What is this?", f"A {name}") | {"images": [name]} for name in names]


def test_each_picture_that_is_none_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    whole = picture(tmp_path / "whole.jpg").read_bytes()
    for name, content in (
        ("cut.jpg", whole[: len(whole) * 2 // 3]),
        ("page.jpg", b"<!DOCTYPE html><html><body>403 Forbidden</body></html>"),
        ("pointer.png", POINTER),
        ("zero.jpg", b""),
        ("as_png.jpg", picture(tmp_path / "b.png").read_bytes()),
    ):
        (tmp_path / name).write_bytes(content)
    names = ("whole.jpg", "as_png.jpg", "cut.jpg", "page.jpg", "pointer.png", "zero.jpg")
    write_rows(tmp_path / "rows.jsonl", shows(*names))
    *broken, _ = found(tmp_path, "rows.jsonl")
    assert [rule for rule, _, _ in broken] == ["broken-image"] * 4
    words = ("it is cut off", "HTML page: 403 Forbidden", "a Git LFS pointer", "empty, of 0 bytes")
    for (_, message, _), name, said in zip(broken, names[2:], words, strict=True):
        assert f"{name} cannot be decoded: it " in message
        assert said in message
    assert broken[2][2] == "in its repository: git lfs pull"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.arrow", "a.csv", "a.tar"])
def test_rows_that_are_a_pointer_are_one_finding_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    ((rule, message, help),) = found(tmp_path, name)
    assert rule == "broken-row"
    assert message.startswith(f"{name} is a Git LFS pointer, for a file of 99,213 bytes")
    assert help == "in its repository: git lfs pull"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_one_short_row_is_rows_and_one_line_of_text_is_none(
    tmp_path: Path, mark: bytes
) -> None:
    (tmp_path / "a.jsonl").write_bytes(mark + json.dumps(chat("a", "b")).encode())
    assert list(found(tmp_path, "a.jsonl")) == []
    (tmp_path / "b.jsonl").write_bytes(mark + b"Entry not found\n")
    ((rule, message, _),) = found(tmp_path, "b.jsonl")
    assert (rule, message) == ("broken-row", 'b.jsonl is text: "Entry not found", and no rows')


def test_packed_rows_are_named_as_such_and_capitals_are_no_other_kind(tmp_path: Path) -> None:
    row = json.dumps(chat("a", "b")).encode()
    for name in ("a.jsonl.gz", "b.jsonl", "c.parquet"):
        (tmp_path / name).write_bytes(gzip.compress(row))
        ((rule, message, _),) = found(tmp_path, name)
        assert (rule, message.startswith(f"{name} is packed with gzip")) == ("broken-row", True)
    (tmp_path / "D.JSONL").write_bytes(row)
    assert list(found(tmp_path, "D.JSONL")) == []


def test_a_name_with_a_blank_behind_it_is_quoted_with_the_file_that_is_near(tmp_path: Path) -> None:
    picture(tmp_path / "plan a.png")
    write_rows(tmp_path / "rows.jsonl", shows("plan a.png ", "plan a.png"))
    (rule, message, help), _ = found(tmp_path, "rows.jsonl")
    assert rule == "missing-image"
    assert 'there is no image "plan a.png "' in message
    assert "(there is `plan a.png`, which differs in blanks" in message
    assert help == "did you mean `plan a.png`?"


def test_rows_whose_own_name_differs_lead_to_the_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "Rows.jsonl", [chat("a", "b")])
    ((rule, message, help),) = found(tmp_path, "rows.jsonl ")
    assert (rule, help) == ("path-not-found", "did you mean `Rows.jsonl`?")
    assert '"rows.jsonl " is not there' in message


@pytest.mark.parametrize(
    ("fps", "more", "said"),
    [
        (None, ["model.family=qwen3_vl"], True),
        (None, ["model.family=qwen2_5_vl"], True),
        (None, ["model.family=qwen2_vl"], False),
        (None, ["model.family=qwen3_vl", "data.video.fps=1"], False),
        (4, ["model.family=qwen3_vl"], False),
    ],
)
def test_a_list_of_frames_without_a_rate_is_told_where_the_model_is_shown_times(
    tmp_path: Path, fps: int | None, more: list[str], said: bool
) -> None:
    video = {"video": frames(tmp_path, "f", 4)} | ({} if fps is None else {"fps": fps})
    write_rows(tmp_path / "rows.jsonl", [chat("<video>?", "b") | {"videos": [video]}])
    notes = [(rule, text) for rule, text, _ in found(tmp_path, "rows.jsonl", *more)]
    expected = (
        "frames-without-rate",
        "data.train: of 1 rows, 1 with a list of frames and no `fps`, taken as 2 a second"
        " (rows.jsonl:1)",
    )
    assert notes == ([expected] if said else [])
