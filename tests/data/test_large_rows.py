"""A row that is larger than any row is refused before it is made of Python's objects."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from vtool.data.containers.arrow import ArrowRows
from vtool.data.containers.parquet import ParquetRows
from vtool.data.json_lines import JsonLines
from vtool.diagnostics import Findings


def rows_of(path: Path, texts: pa.Array) -> ArrowRows | ParquetRows | JsonLines:
    table = pa.table({"prompt": texts, "completion": texts})
    match path.suffix:
        case ".parquet":
            parquet.write_table(table, path)
            return ParquetRows([path], str(path))
        case ".arrow":
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
            return ArrowRows([path], str(path))
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return JsonLines(path)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_a_row_of_very_many_bytes_is_refused(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("containers.columns", "containers.json_array", "json_lines"):
        monkeypatch.setattr(f"vtool.data.{module}.LARGEST_ROW", 10_000)
    rows = rows_of(tmp_path / f"a.{suffix}", pa.array(["x" * 20_000, "x"]))
    with pytest.raises(Findings, match=r"broken-row.* bytes; rows of 10,000 are read"):
        rows.record(0)
    assert rows.record(1)["prompt"] == "x"


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_column_of_categories_may_have_many(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.data.containers.columns.LARGEST_ROW", 10_000)
    texts = pa.array([f"{n} " + "x" * 200 for n in range(100)]).dictionary_encode()
    rows = rows_of(tmp_path / f"a.{suffix}", texts)
    assert rows.record(99)["prompt"].startswith("99 x")


def test_one_value_that_a_row_names_very_often_counts_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("columns", "json_array"):
        monkeypatch.setattr(f"vtool.data.containers.{module}.LARGEST_ROW", 100_000)
    table = pa.table({"images": [["x" * 2000] * 60, ["x" * 2000] * 40]})
    parquet.write_table(table, tmp_path / "a.parquet")
    rows = ParquetRows([tmp_path / "a.parquet"], "a.parquet")
    with pytest.raises(Findings, match=r"broken-row.*has 120,000 bytes; rows of 100,000 are read"):
        rows.record(0)
    assert len(rows.record(1)["images"]) == 40


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_more_rows_than_a_file_can_have_are_refused(suffix: str, tmp_path: Path) -> None:
    count, path = 2**21, tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        texts = pa.array(["x"]).take(pa.array([0] * count))
    else:
        texts = pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array(["x"]))
    with pytest.raises(Findings, match=r"broken-row.*says that it has 2,097,152 rows, in "):
        rows_of(path, texts)
