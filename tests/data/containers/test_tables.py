"""Rows of Arrow and Parquet: those of `save_to_disk`, single files, and folders of them."""

import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.readers import open_rows
from tests.rows import chat, picture
from vtool.data.containers import columns, parquet
from vtool.diagnostics import Findings

IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


@pytest.fixture
def table(tmp_path: Path) -> pa.Table:
    """Seven chats, with pictures inside."""
    pictures = [picture(tmp_path / f"{n}.png", seed=n).read_bytes() for n in range(7)]
    carried = [[{"bytes": each, "path": f"gone/{n}.png"}] for n, each in enumerate(pictures)]
    messages = [chat(f"<image>What is {n}?", f"No {n}.")["messages"] for n in range(7)]
    return pa.table({"messages": messages, "images": pa.array(carried, IMAGES)})


def saved(folder: Path, table: pa.Table, files: int = 2, **state: Any) -> Path:
    """A folder as `datasets.Dataset.save_to_disk` writes it; the name's order is not the rows'."""
    folder.mkdir()
    names = [f"data-{files - n:05}-of-{files:05}.arrow" for n in range(files)]
    each = -(-table.num_rows // files)
    for n, name in enumerate(names):
        part = table.slice(n * each, each)
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as w,
        ):
            w.write_table(part, max_chunksize=2)
    whole = {"_data_files": [{"filename": name} for name in names], "_format_columns": None}
    (folder / "state.json").write_text(json.dumps(whole | state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


def opened(path: Path) -> Any:
    return open_rows("messages", path)


def finding(path: Path, row: int = 0) -> Any:
    with pytest.raises(Findings) as caught:
        opened(path).row(row)
    return caught.value.diagnostics[0]


def test_pictures_inside_of_every_container_are_those_of_files(
    tmp_path: Path, table: pa.Table
) -> None:
    arrow = tmp_path / "one.arrow"
    with pa.OSFile(str(arrow), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "b.parquet", table.slice(4), row_group_size=2)
    write(folder / "a.parquet", table.slice(0, 4))
    for path in (
        arrow,
        saved(tmp_path / "disk", table),
        write(tmp_path / "rows.parquet", table, row_group_size=3),
        folder,
    ):
        rows = opened(path)
        assert len(rows) == 7
        for index in (6, 0, 3):
            row = rows.row(index)
            assert row.images == [(tmp_path / f"{index}.png").read_bytes()], path
            assert row.messages[1]["content"] == f"No {index}."
        assert rows.name(3) == f"{path.name} row 4"
        again = pickle.loads(pickle.dumps(rows))
        assert again.row(5).messages == rows.row(5).messages
        assert len(pickle.dumps(rows)) < 5_000, "a worker maps the file itself"


def test_the_datasets_librarys_own_folder_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [chat(f"a{n}", f"b{n}") for n in range(5)]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "disk"), num_shards=2)
    found = opened(tmp_path / "disk")
    assert [found.row(n).messages for n in range(5)] == [row["messages"] for row in rows]
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    splits.save_to_disk(str(tmp_path / "splits"))
    reported = finding(tmp_path / "splits")
    assert (reported.rule, reported.help) == (
        "broken-row",
        f"name one of them: path: {tmp_path / 'splits' / 'train'}",
    )
    assert len(opened(tmp_path / "splits/train")) == 5


@pytest.mark.parametrize("change", ["cast", "as numpy", "fewer columns", "shuffled"])
def test_what_datasets_has_saved_after_a_change_is_read(
    tmp_path: Path, table: pa.Table, change: str
) -> None:
    """Each of these writes a `state.json` of its own; all rows and columns are there."""
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset(table)
    if change == "cast":
        made = made.cast_column("images", datasets.Sequence(datasets.Image()))
    elif change == "as numpy":
        made = made.with_format("numpy")
    elif change == "fewer columns":
        made = made.add_column("note", ["a"] * 7).select_columns(["messages", "images"])
    else:
        made = made.shuffle(seed=0)
    made.save_to_disk(str(tmp_path / "saved"))
    rows = opened(tmp_path / "saved")
    answers = [rows.row(n).messages[-1]["content"] for n in range(7)]
    assert sorted(answers) == [f"No {n}." for n in range(7)]
    assert (answers != sorted(answers)) == (change == "shuffled")


def test_columns_that_datasets_is_set_to_hide_are_not_skipped(
    tmp_path: Path, table: pa.Table
) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset(table).with_format(None, columns=["messages"])
    made.save_to_disk(str(tmp_path / "saved"))
    assert "a choice of its columns only" in finding(tmp_path / "saved").message


@pytest.mark.parametrize("key", ["_format_columns", "_indices_files"])
def test_a_folder_that_shows_a_part_of_itself_is_refused(
    tmp_path: Path, table: pa.Table, key: str
) -> None:
    reported = finding(saved(tmp_path / "disk", table, **{key: ["messages"]}))
    assert reported.rule == "broken-row"
    assert key in reported.message


def test_keys_that_other_rows_have_are_none_of_this_row(tmp_path: Path) -> None:
    image, said = {"type": "image"}, {"type": "text", "text": "x"}
    parts = [{"role": "user", "content": [image, said]}, {"role": "assistant", "content": [said]}]
    weighed = chat([said], "b")["messages"]
    weighed[1] = {"role": "assistant", "content": [said], "weight": 0}
    code = "data:image/png;base64,AA=="
    table = pa.table({"messages": [parts, weighed], "images": [[code], None]})
    rows = opened(write(tmp_path / "rows.parquet", table))
    assert rows.row(0).messages == parts
    assert rows.row(1).messages == weighed
    assert list(rows.row(0).supervised()) == [1]
    assert list(rows.row(1).supervised()) == []


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "a", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


def test_arguments_that_arrow_has_merged_are_refused(tmp_path: Path) -> None:
    merged = pa.table({"messages": [called({"city": "Bonn"}), called({"n": 1})]})
    reported = finding(write(tmp_path / "merged.parquet", merged), row=1)
    assert reported.rule == "merged-by-arrow"
    assert "merged.parquet row 2" in reported.message
    same = pa.table({"messages": [called({"n": 2}), called({"n": 1})]})
    row = opened(write(tmp_path / "same.parquet", same)).row(1)
    assert row.messages[1]["tool_calls"] == [{"function": {"name": "f", "arguments": {"n": 1}}}]


def test_calls_and_tools_that_are_json_as_text_are_read(tmp_path: Path) -> None:
    calls = called({"city": "Bonn"})
    asked = [{"role": "assistant", "content": None, "tool_calls": calls[1]["tool_calls"]}]
    asked[0]["tool_calls"] = json.dumps(asked[0]["tool_calls"])  # type: ignore[assignment]
    user = [{"role": "user", "content": "a", "tool_calls": None}]
    table = pa.table({"messages": [user + asked], "tools": ['[{"name": "f"}]']})
    row = opened(write(tmp_path / "rows.parquet", table)).row(0)
    assert row.messages == [{"role": "user", "content": "a"}, calls[1]]
    assert row.tools == [{"name": "f"}]


def test_a_group_that_cannot_be_read_is_a_finding_of_its_rows_alone(
    tmp_path: Path, table: pa.Table
) -> None:
    path = write(
        tmp_path / "rows.parquet", table, row_group_size=3, compression="zstd", use_dictionary=False
    )
    group = pq.ParquetFile(path).metadata.row_group(1)
    start = group.column(0).data_page_offset
    whole = bytearray(path.read_bytes())
    whole[start : start + 20] = bytes(20)
    path.write_bytes(whole)
    rows = opened(path)
    assert [rows.row(n).messages[1]["content"] for n in (0, 2, 6)] == ["No 0.", "No 2.", "No 6."]
    reported = finding(path, row=4)
    assert reported.rule == "broken-row"
    assert "rows.parquet row 5 is in row group 1 of" in reported.message
    assert "(rows 4 to 6)" in reported.message


def test_groups_are_kept_up_to_a_size(
    tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rows.parquet", table, row_group_size=1)
    for most, kept in ((0, 1), (2**30, 7)):
        monkeypatch.setattr(parquet, "KEPT_BYTES", most)
        rows = opened(path)
        for index in range(7):
            rows.row(index)
        assert len(rows.records._kept) == kept


@pytest.mark.parametrize("name", ["rows.parquet", "one.arrow", "disk"])
@pytest.mark.parametrize("share", [0.3, 0.97])
def test_half_a_file_is_refused(tmp_path: Path, table: pa.Table, name: str, share: float) -> None:
    path = tmp_path / name
    if name == "disk":
        saved(path, table)
        file = path / "data-00001-of-00002.arrow"
    elif name == "one.arrow":
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
        file = path
    else:
        file = write(path, table)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    reported = finding(path)
    assert reported.rule == "broken-row"
    assert reported.help is not None
    assert "copy it again" in reported.help


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_damaged_file_is_a_finding_wherever_it_is_damaged(
    tmp_path: Path, table: pa.Table, kind: str
) -> None:
    if kind == "parquet":
        path = write(tmp_path / "rows.parquet", table, row_group_size=3)
    else:
        path = saved(tmp_path / "disk", table, files=1)
    file = path if kind == "parquet" else path / "data-00001-of-00001.arrow"
    whole, random, reported = file.read_bytes(), Random(0), []
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(random.choice((1, 8, 64))):
            damaged[random.randrange(len(whole))] = random.choice((0, 255, random.randrange(256)))
        file.write_bytes(damaged)
        try:
            rows = opened(path)
        except Findings as findings:
            reported += findings.diagnostics
            continue
        for index in range(len(rows)):
            try:
                rows.row(index)
            except Findings as findings:
                reported += findings.diagnostics
    assert len(reported) > 20
    assert [each.message for each in reported if "None" in each.message] == []
    assert {each.rule for each in reported} & {"path-not-found"} == set()


def test_files_of_a_folder_with_other_columns_are_refused(tmp_path: Path, table: pa.Table) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "a.parquet", table)
    write(folder / "b.parquet", table.drop_columns(["images"]))
    reported = finding(folder)
    assert reported.rule == "layout-not-certain"
    assert "b.parquet has other columns than" in reported.message
    assert "images: list" in reported.message


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rows.parquet", table)

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(columns, "import_module", absent)
    reported = finding(path)
    assert reported.rule == "extra-not-installed"
    assert reported.help == "pip install 'vtool[data]'"
