"""The kind of a path, and the paths that are refused before any row is read."""

import json
import os
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import open_rows
from tests.rows import chat, write_rows
from vtool.data.containers import json_array
from vtool.data.containers.files import KIND_NAMES
from vtool.data.containers.records import open_records
from vtool.diagnostics import Diagnostic, Findings


def finding(path: Path) -> Diagnostic:
    with pytest.raises(Findings) as caught:
        open_records(str(path))
    (found,) = caught.value.diagnostics
    return found


def test_a_folders_files_are_one_source_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_rows(tmp_path / "b.jsonl", [chat("c", "3")])
    (tmp_path / "a.json").write_text(json.dumps([chat("a", "1"), chat("b", "2")]))
    (tmp_path / "notes.txt").write_text("no rows")
    (tmp_path / "._a.jsonl").write_bytes(b"\0\x05\x16\x07")  # as macOS leaves it next to a copy
    (tmp_path / "loop").symlink_to(tmp_path)
    rows = open_rows("messages", tmp_path)
    assert [rows.row(n).messages[1]["content"] for n in range(3)] == ["1", "2", "3"]
    assert [rows.name(n) for n in range(3)] == ["a.json row 1", "a.json row 2", "b.jsonl:1"]
    before = rows.describe()
    assert before["rows"] == 3
    write_rows(tmp_path / "b.jsonl", [chat("c", "4")])
    assert open_rows("messages", tmp_path).describe()["sha256"] != before["sha256"]


def test_a_link_to_itself_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").symlink_to(tmp_path / "rows.jsonl")
    for path in (tmp_path, tmp_path / "rows.jsonl"):
        found = finding(path)
        assert found.rule == "path-not-found"
        assert os.strerror(40) in found.message, path


def test_a_folder_without_rows_and_one_of_two_kinds_are_refused(tmp_path: Path) -> None:
    assert "without a file of rows" in finding(tmp_path).message
    write_rows(tmp_path / "a.jsonl", [chat("a", "b")])
    (tmp_path / "b.parquet").write_bytes(b"PAR1....PAR1")
    found = finding(tmp_path)
    assert found.rule == "layout-not-certain"
    assert "JSON (a.jsonl) and Parquet (b.parquet)" in found.message


def test_parquet_that_is_named_json_is_reported_with_the_conversion(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "my rows.jsonl"
    pq.write_table(pa.table({"messages": [chat("a", "b")["messages"]]}), path)
    found = finding(path)
    assert found.rule == "broken-row"
    assert "is Parquet, and its name says JSON" in found.message
    assert found.help is not None
    assert f"vtool convert '{path}' '{tmp_path / 'my rows-lines.jsonl'}'" in found.help
    assert len(open_records(str(path), whatever_its_name=True)) == 1


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".tar"])
def test_what_is_not_what_its_name_says_is_refused_as_what_it_is(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"rows{suffix}"
    write_rows(path, [chat("a", "b")])
    found = finding(path)
    assert f"is JSON, and its name says {KIND_NAMES[suffix[1:]]}" in found.message
    assert found.help == "rename it to rows.jsonl, which is read as it is"
    path.write_text("[" + json.dumps(chat("a", "b")) + "]")
    assert finding(path).help == "rename it to rows.json, which is read as it is"
    path.write_bytes(b"\x01 neither")
    assert "as its name says" in finding(path).message


def test_lists_that_a_column_keeps_as_json_text_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = chat("a", "b") | {"images": [], "prompt": "[1, 2]"}
    texts = {key: json.dumps(row[key]) for key in ("messages", "images")} | {"prompt": "[1, 2]"}
    pq.write_table(pa.Table.from_pylist([texts]), tmp_path / "rows.parquet")
    write_rows(tmp_path / "rows.jsonl", [texts])
    for name in ("rows.parquet", "rows.jsonl"):
        assert open_records(str(tmp_path / name)).record(0) == row
    texts["messages"] = str(row["messages"])
    write_rows(tmp_path / "rows.jsonl", [texts])
    with pytest.raises(Findings, match=r'"messages" is text: a list as Python.s str\(\) writes it'):
        open_records(str(tmp_path / "rows.jsonl")).record(0)


@pytest.mark.parametrize("name", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE", "UTF-16"])
def test_text_of_another_encoding_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((json.dumps(chat("a", "b")) + "\n").encode(name))
    found = finding(path)
    assert (found.rule, f"is text in {name}, and UTF-8 is read" in found.message) == (
        "broken-row",
        True,
    )
    assert found.help == f"iconv -f {name} -t UTF-8 {path} > {tmp_path / 'rows-utf8.jsonl'}"


def test_a_table_with_the_columns_of_a_layout_says_how_it_becomes_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('messages,images\n"[]",cat.png\n')
    found = finding(path)
    assert "is a table (.csv), which is not read, with the columns messages, images" in (
        found.message
    )
    assert found.help is not None
    assert "pandas.read_csv('rows.csv').to_json('rows.jsonl', orient='records'" in found.help


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".xlsx"])
def test_a_table_is_refused_with_what_is_read_in_its_place(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(b"PK\x03\x04" if suffix == ".xlsx" else b"question,answer\n")
    found = finding(path)
    assert (found.rule, f"is a table ({suffix})" in found.message) == ("broken-row", True)
    assert found.help is not None
    write_rows(path, [json.loads(found.help.partition("a row: ")[2])])
    assert len(open_records(str(path))) == 1  # rows are rows whatever the end of their file's name


@pytest.mark.parametrize(
    ("head", "name"), [(b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"BZh", "bzip2")]
)
def test_a_packed_file_is_refused(tmp_path: Path, head: bytes, name: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(head + bytes(600))
    assert f"packed with {name}" in finding(tmp_path / "rows.jsonl").message


@pytest.mark.parametrize("code", ["utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["rows.jsonl", "my rows.json"])
def test_text_in_utf_16_is_one_finding_and_can_be_mended(
    tmp_path: Path, code: str, name: str
) -> None:
    """PowerShell writes such files."""
    rows = [chat("aü", "b"), chat("c", "d")]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    mark = b"\xfe\xff" if code.endswith("be") else b""
    (tmp_path / name).write_bytes(mark + text.encode(code))
    reported = finding(tmp_path / name)
    assert (reported.rule, "is text in UTF-16" in reported.message) == ("broken-row", True)
    assert reported.help is not None
    subprocess.run(reported.help, shell=True, check=True)
    made = next(tmp_path.glob("*-utf8.*"))
    found = open_records(str(made))
    assert [found.record(n) for n in range(len(found))] == rows


def test_line_ends_of_windows_and_a_mark_at_the_beginning_are_no_part_of_rows(
    tmp_path: Path,
) -> None:
    rows = [chat("a\r\nb", "c"), chat("d", "e")]
    text = "\ufeff" + "\r\n".join(map(json.dumps, rows)) + "\r\n\r\n"
    (tmp_path / "rows.jsonl").write_bytes(text.encode())
    (tmp_path / "rows.json").write_bytes(
        ("\ufeff" + json.dumps(rows, indent=1).replace("\n", "\r\n")).encode()
    )
    for name in ("rows.jsonl", "rows.json"):
        found = open_records(str(tmp_path / name))
        assert [found.record(n) for n in range(len(found))] == rows


@pytest.mark.full
def test_a_line_of_100_mb_costs_its_own_row_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        file.write(json.dumps(chat("a", "b")) + "\n")
        file.write('{"messages": [], "notes": "' + "x" * 100_000_000 + '"}\n')
        file.write(json.dumps(chat("c", "d")) + "\n")
    rows = open_rows("messages", path)
    assert rows.row(2).messages[0]["content"] == "c"
    with pytest.raises(Findings, match="malformed-messages"):
        rows.row(1)


class Counted:
    """A file that counts what is read of it."""

    def __init__(self, file: Any) -> None:
        self.file, self.read_bytes = file, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read1(self, size: int = -1) -> bytes:
        found: bytes = self.file.read1(size)
        self.read_bytes += len(found)
        return found

    def read(self, size: int = -1) -> bytes:
        found: bytes = self.file.read(size)
        self.read_bytes += len(found)
        return found


def test_a_broken_array_is_reported_without_reading_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK", 1000)
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, {"a" 2}, ' + '{"a": 3}, ' * 100_000 + "{}]")
    with path.open("rb") as file:
        counted = Counted(file)
        with pytest.raises(Findings, match=r"at row 2, Expecting ':' delimiter"):
            list(json_array.find_elements(counted, path))  # type: ignore[arg-type]
        assert counted.read_bytes < 50_000


@pytest.mark.full
def test_an_array_is_found_without_being_in_memory_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    row = json.dumps(chat("a" * 1000, "b"))
    with path.open("w") as file:
        file.write("[" + ",\n".join([row] * 20_000) + "]")
    tracemalloc.start()
    try:
        rows = open_records(str(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == 20_000
    assert path.stat().st_size > 20 * 2**20
    assert peak < 14 * 2**20  # 300 bytes a place, a chunk and its copies
    assert rows.record(19_999) == json.loads(row)


def test_text_that_is_no_json_is_one_finding(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("instruction,output\na,b\nc,d\n" * 200)
    found = finding(path)
    assert found.message == f"{path} is text, and no rows: it begins with 'instruction,output'"
    path.write_text("// the first line says more\n" + (json.dumps(chat("a", "b")) + "\n") * 2)
    assert len(open_records(str(path))) == 3, "one line alone is a finding of that line"
    path.write_text(str(chat("a", "b")) + "\n")
    with pytest.raises(Findings, match="a dict as Python's str"):
        open_records(str(path)).record(0)
    path.write_bytes(json.dumps(chat("a", "caf\u00e9"), ensure_ascii=False).encode("latin-1"))
    with pytest.raises(Findings, match=r"is not text in UTF-8: byte \d+ is 0xe9"):
        open_records(str(path)).record(0)
