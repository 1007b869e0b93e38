"""Parquet with a group that is too large to be in memory for one row: read from a copy."""

import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.readers import open_rows
from tests.rows import chat
from tests.runs import request
from vtool.data.containers import arrow_copy, parquet
from vtool.data.detect import source_messages
from vtool.data.sources import Rows
from vtool.diagnostics import Findings

ROWS = 300


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of a few KiB are too large here, and the cache folder is the test's."""
    monkeypatch.setattr(parquet, "LARGEST_GROUP", 2**12)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    messages = [chat(f"What is {n}?", f"No {n}.")["messages"] for n in range(ROWS)]
    pq.write_table(pa.table({"messages": messages}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def opened(path: Path) -> Any:
    return open_rows("messages", path)


def copies(folder: Path) -> list[Path]:
    return sorted((folder / "cache/vtool/arrow").glob("*"))


def answers(reader: Any) -> list[str]:
    return [reader.row(n).messages[1]["content"] for n in range(len(reader))]


WANTED = [f"No {n}." for n in range(ROWS)]


def test_rows_of_a_copy_are_those_of_the_file_and_it_is_made_once(
    tmp_path: Path, path: Path
) -> None:
    reader = opened(path)
    (copy,) = copies(tmp_path)
    assert reader.records.copy == copy
    assert answers(reader) == WANTED
    assert not reader.records._kept  # no group was read
    assert copy.stat().st_mode & 0o077 == 0  # training text is its owner's
    made = copy.stat().st_ino
    assert answers(pickle.loads(pickle.dumps(opened(path)))) == WANTED
    assert copies(tmp_path) == [copy]
    assert copy.stat().st_ino == made
    (message,) = source_messages(reader.describe())
    assert str(copy) in message
    assert "rows.parquet has a row group of 0 MiB" in message


def test_small_groups_are_read_from_the_file_itself(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "LARGEST_GROUP", 2**28)
    reader = opened(path)
    assert answers(reader) == WANTED
    assert not copies(tmp_path)
    assert source_messages(reader.describe()) == []


@pytest.mark.parametrize("start", ["the same", "the next"])
@pytest.mark.parametrize("damage", ["gone", "cut", "other rows", "a letter", "zeros", "empty"])
def test_a_copy_that_is_not_whole_is_made_again(
    tmp_path: Path, path: Path, damage: str, start: str
) -> None:
    reader = opened(path)
    (copy,) = copies(tmp_path)
    if damage == "gone":
        copy.unlink()
    elif damage == "cut":
        copy.write_bytes(copy.read_bytes()[:-900])
    elif damage == "a letter":  # what Arrow itself does not see
        copy.write_bytes(copy.read_bytes().replace(b"No 7.", b"No 8."))
    elif damage == "zeros":
        copy.write_bytes(copy.read_bytes().replace(b"No 7.", bytes(5)))
    elif damage == "empty":
        copy.write_bytes(b"")
    else:
        table = pa.ipc.open_file(str(copy)).read_all()
        with pa.OSFile(str(copy), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table.slice(1))
    assert answers(reader if start == "the same" else opened(path)) == WANTED
    assert copies(tmp_path) == [copy]


def test_another_file_of_the_same_name_has_a_copy_of_its_own(tmp_path: Path, path: Path) -> None:
    opened(path)
    pq.write_table(pa.table({"messages": [chat("a" * 9999, "b")["messages"]]}), path)
    assert answers(opened(path)) == ["b"]
    assert len(copies(tmp_path)) == 2


def test_without_room_on_the_disk_groups_are_read_as_they_are(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert answers(opened(path)) == WANTED
    assert not copies(tmp_path)


def test_where_the_cache_cannot_be_written_groups_are_read_as_they_are(
    tmp_path: Path, path: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert answers(opened(path)) == WANTED


def test_a_file_with_an_unreadable_group_is_not_copied(tmp_path: Path) -> None:
    messages = [chat(f"What is {n}?", f"No {n}.")["messages"] for n in range(ROWS)]
    path = tmp_path / "rows.parquet"
    options = {"compression": "zstd", "use_dictionary": False}
    pq.write_table(pa.table({"messages": messages}), path, row_group_size=150, **options)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    whole = bytearray(path.read_bytes())
    whole[start : start + 20] = bytes(20)
    path.write_bytes(whole)
    reader = opened(path)
    assert not copies(tmp_path)
    assert reader.row(149).messages[1]["content"] == "No 149."
    with pytest.raises(Findings, match="row group 1 of"):
        reader.row(150)


def test_the_copies_that_were_used_last_are_kept(tmp_path: Path, path: Path) -> None:
    folder = tmp_path / "cache/vtool/arrow"
    folder.mkdir(parents=True)
    for number in range(arrow_copy.MOST_COPIES + 3):
        (folder / f"{number}.arrow").touch()
        os.utime(folder / f"{number}.arrow", (number, number))
    opened(path)
    kept = {copy.name for copy in copies(tmp_path)}
    assert len(kept) == arrow_copy.MOST_COPIES
    assert "3.arrow" not in kept
    assert "4.arrow" in kept
    assert answers(opened(path)) == WANTED


def test_of_a_mixture_with_more_sources_than_copies_are_kept_each_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = []
    for number in range(arrow_copy.MOST_COPIES + 3):
        messages = [chat(f"What is {n}?", f"{number}: {n}.")["messages"] for n in range(ROWS)]
        pq.write_table(pa.table({"messages": messages}), tmp_path / f"{number}.parquet")
        readers.append(opened(tmp_path / f"{number}.parquet"))
    made = copies(tmp_path)
    monkeypatch.setattr(arrow_copy, "_write", lambda *_: pytest.fail("it is made again"))
    for number, reader in enumerate(readers):
        assert reader.row(5).messages[1]["content"] == f"{number}: 5."
        there = pickle.loads(pickle.dumps(reader))  # as a data worker gets it
        assert there.row(5).messages[1]["content"] == f"{number}: 5."
    assert copies(tmp_path) == made


def test_what_a_killed_process_has_left_is_removed_though_there_is_no_room(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache/vtool/arrow"
    folder.mkdir(parents=True)
    for name in (".making-old", ".making-now"):
        (folder / name).write_bytes(b"a" * 99)
    os.utime(folder / ".making-old", (1, 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert answers(opened(path)) == WANTED
    assert [copy.name for copy in copies(tmp_path)] == [".making-now"]


def test_memory_that_runs_out_is_told_and_the_copy_is_kept(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(path)
    made = copies(tmp_path)

    def full(*_: Any, **__: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pa, "memory_map", full)
    with pytest.raises(Findings, match="more memory than there is"):
        reader.row(0)
    assert copies(tmp_path) == made
    monkeypatch.setattr(parquet, "LARGEST_GROUP", 2**28)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", full)
    with pytest.raises(Findings, match="more memory than there is"):
        opened(path).row(0)


def test_to_find_out_a_format_the_beginning_alone_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(*_: Any, **__: Any) -> Any:
        raise AssertionError("the whole group was read")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", whole)
    rows = Rows(request("rows", f"data.train=[{{format: auto, path:'{path}'}}]").run.data.train)
    assert len(rows) == ROWS
    assert rows.row(ROWS - 1).messages[1]["content"] == WANTED[-1]
