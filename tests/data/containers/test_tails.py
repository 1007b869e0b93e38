"""Files of rows with something behind their end: refused at once, however long it goes on."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.rows import chat
from vtool.data.containers.records import open_records
from vtool.diagnostics import Findings

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

LONG = 40 * 2**30
ROWS = [chat("?", f"answer {n}") for n in range(3)]


def as_tar(rows: int = 3, record: int = tarfile.RECORDSIZE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for n, row in enumerate(ROWS[:rows]):
            content = json.dumps(row).encode()
            member = tarfile.TarInfo(f"{n}.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue().ljust(record, b"\0")


def as_stream() -> bytes:
    out, table = io.BytesIO(), pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def as_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(ROWS), out)
    return out.getvalue()


FILES = {
    "rows.tar": as_tar,
    "rows.arrow": as_stream,
    "rows.parquet": as_parquet,
    "rows.json": lambda: json.dumps(ROWS).encode(),
}


def refusal(file: Path) -> str:
    with pytest.raises(Findings) as caught:
        open_records(str(file))
    assert caught.value.diagnostics[0].rule == "broken-row"
    return caught.value.diagnostics[0].message


@pytest.mark.parametrize("name", FILES)
def test_forty_gigabytes_behind_a_whole_file_are_not_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name]())
    assert len(open_records(str(file))) == 3
    os.truncate(file, LONG)  # without a block of the disk
    refusal(file)


@pytest.mark.parametrize("name", ["rows.tar", "rows.arrow"])
def test_a_second_file_behind_the_first_is_not_left_out_silently(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name]() * 2)
    assert "behind its end" in refusal(file)


def test_a_tar_may_be_filled_up_to_the_record_of_a_tape(tmp_path: Path) -> None:
    file = tmp_path / "rows.tar"
    file.write_bytes(as_tar(record=2**20))
    assert len(open_records(str(file))) == 3


def test_an_arrow_stream_may_end_without_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "rows.arrow"
    file.write_bytes(as_stream().removesuffix(b"\xff\xff\xff\xff\0\0\0\0"))
    assert len(open_records(str(file))) == 3


def test_a_column_whose_name_is_no_text_is_a_finding_of_its_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.arrow"
    file.write_bytes(as_stream().replace(b"content", b"c\xff\xfftent", 1))
    with pytest.raises(Findings, match="cannot be read: 'utf-8' codec"):
        open_records(str(file)).record(0)
