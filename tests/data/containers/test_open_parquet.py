"""Parquet files: their checksums, and texts that a dictionary repeats."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vtool.data.containers.arrow_copy import copy_to_arrow, map_copy
from vtool.data.containers.files import digest_of_files
from vtool.data.containers.parquet import ParquetRows
from vtool.diagnostics import Findings

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS, SHARED = 2000, "x" * 900_000


def chat(answer: str, system: str = "s") -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "assistant", "content": answer}]


def with_shared_system_prompt(file: Path, rows: int = ROWS) -> None:
    """Write rows that share one long system prompt: 40 KB, and 1.8 GB unpacked."""
    contents = pa.array([SHARED, *(f"answer {n}" for n in range(7))])
    indices = pa.array([n % 2 and 1 + n // 2 % 7 for n in range(2 * rows)], pa.int32())
    roles = pa.array(["system", "assistant"] * rows)
    parts = [roles, pa.DictionaryArray.from_arrays(indices, contents)]
    messages = pa.StructArray.from_arrays(parts, ["role", "content"])
    offsets = pa.array(range(0, 2 * rows + 1, 2), pa.int32())
    table = pa.table({"messages": pa.ListArray.from_arrays(offsets, messages)})
    parquet.write_table(table, file, store_schema=False)


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a_flipped_byte_of_a_page_with_a_checksum_is_found(
    tmp_path: Path, compression: str
) -> None:
    file = tmp_path / "rows.parquet"
    table = pa.table({"messages": [chat(f"answer {n}") for n in range(50)]})
    parquet.write_table(
        table, file, write_page_checksum=True, compression=compression, use_dictionary=False
    )
    assert ParquetRows([file], str(file)).record(7)["messages"][1]["content"] == "answer 7"
    content = bytearray(file.read_bytes())
    pages = parquet.read_metadata(file).row_group(0).column(1)
    content[pages.data_page_offset + pages.total_compressed_size // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Findings, match=r"which cannot be read: .*CRC") as caught:
        ParquetRows([file], str(file)).record(3)
    assert caught.value.diagnostics[0].rule == "broken-row"
    assert copy_to_arrow([file], digest_of_files([file]), file.stat().st_size) is None


def test_a_text_that_many_rows_share_is_unpacked_for_one_row_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    with_shared_system_prompt(file)
    assert file.stat().st_size < 2**17
    script = (
        "import resource, sys\n"
        "from vtool.data.containers.parquet import ParquetRows\n"
        "rows = ParquetRows([sys.argv[1]], sys.argv[1], first=None)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "rows.record(0); before = peak()\n"
        "found = {len(str(rows.record(n))) for n in range(0, 2000, 100)}\n"
        "print(len(rows), min(found) > 900_000, (peak() - before) // 1024)"
    )
    script = script.replace("[sys.argv[1]]", "[__import__('pathlib').Path(sys.argv[1])]")
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True
    )
    rows, whole, mib = done.stdout.split()
    assert (rows, whole) == ("2000", "True")
    assert int(mib) < 64


def test_a_copy_of_such_rows_is_written_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "rows.parquet"
    with_shared_system_prompt(file, rows=300)
    written: list[Any] = []
    real = pa.ipc.RecordBatchFileWriter.write_table

    class Writer(pa.ipc.RecordBatchFileWriter):  # type: ignore[misc]
        def write_table(self, table: Any, *rest: Any) -> None:
            written.append(table.nbytes)
            real(self, table, *rest)

    monkeypatch.setattr(pa.ipc, "RecordBatchFileWriter", Writer)
    copy = copy_to_arrow([file], digest_of_files([file]), 300 * len(SHARED))
    assert copy is not None
    assert sum(written) > 300 * len(SHARED)
    assert max(written) < 2 * 2**26
    rows = map_copy(copy, 300)
    assert (
        rows.slice(299, 1).to_pylist()
        == ParquetRows([file], str(file))._file(0).read().slice(299, 1).to_pylist()
    )


_ROLE = b"%\x02\x18\x04role"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        # a column of texts becomes one of numbers, and keeps its histograms
        (b"\x15\x0c" + _ROLE, b"\x15\x08" + _ROLE, "does not support FLOAT"),
        # six rows of a group become five
        (b"\x16\x0c&\x08\x16", b"\x16\x0a&\x08\x16", "its groups have 5 rows, and it says 6"),
    ],
)
def test_what_a_damaged_footer_says_is_a_finding_and_ends_no_process(
    old: bytes, new: bytes, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"messages": [chat(f"answer {n}") for n in range(6)]}), file)
    content = file.read_bytes()
    assert content.count(old) == 1
    file.write_bytes(content.replace(old, new))
    code = (
        "import sys; from vtool.data.containers.parquet import ParquetRows\n"
        "from vtool.diagnostics import Findings\nfrom pathlib import Path\n"
        "try: ParquetRows([Path(sys.argv[1])], sys.argv[1]).record(0)\n"
        "except Findings as found: print(found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert why in done.stdout
