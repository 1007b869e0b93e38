import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.readers import open_rows
from tests.rows import chat, write_rows
from vtool.data.containers.parquet import ParquetRows
from vtool.data.detect import describe_source, detect, source_messages
from vtool.data.formats import LAYOUTS
from vtool.diagnostics import Diagnostic, Findings

TURNS = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
KNOWN: dict[str, Any] = {
    "messages": chat("a", "b"),
    "llava": TURNS,
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "trl": {"prompt": chat("a", "b")["messages"], "completion": chat("a", "b")["messages"]},
    "swift": {"query": "a", "response": "b"},
}
UNLEARNT = chat("a", "b")
UNLEARNT["messages"][1]["loss"] = False


def uncertain(path: Path) -> Diagnostic:
    with pytest.raises(Findings) as caught:
        detect(str(path))
    (found,) = caught.value.diagnostics
    return found


def test_there_is_a_row_of_every_layout_that_needs_no_setting_but_its_path() -> None:
    assert KNOWN.keys() == {layout.format for layout in LAYOUTS} - {"cauldron", "llama_factory"}


@pytest.mark.parametrize("format", KNOWN)
def test_a_layout_is_known_by_its_first_rows(tmp_path: Path, format: str) -> None:
    lines = write_rows(tmp_path / "rows.jsonl", ['{"a": ', KNOWN[format], KNOWN[format]])
    assert detect(str(lines)).format == format
    array = tmp_path / "rows.json"
    array.write_text(json.dumps([KNOWN[format]]))
    assert detect(str(array)).format == format
    described = open_rows("auto", array).describe()
    assert (described["format"], described["layout"], described["rows"]) == ("auto", format, 1)


def test_messages_with_ms_swifts_keys_next_to_them_are_its_own(tmp_path: Path) -> None:
    for rows in ([UNLEARNT], [chat("a", "b"), UNLEARNT]):
        assert detect(str(write_rows(tmp_path / "rows.jsonl", rows))).format == "swift"


def test_every_layout_with_one_sample_fits_no_other(tmp_path: Path) -> None:
    for format, row in KNOWN.items():
        for other, another in KNOWN.items():
            if other != format:
                found = uncertain(write_rows(tmp_path / "rows.jsonl", [row | another]))
                assert found.rule == "layout-not-certain"
                assert "fits the formats" in found.message, (format, other)


def test_rows_of_two_layouts_are_refused(tmp_path: Path) -> None:
    found = uncertain(write_rows(tmp_path / "rows.jsonl", [chat("a", "b"), TURNS]))
    assert "rows.jsonl:1 is of messages, rows.jsonl:2 of llava" in found.message
    (tmp_path / "rows.jsonl").unlink()
    write_rows(tmp_path / "a.jsonl", [chat("a", "b")] * 200)
    write_rows(tmp_path / "b.jsonl", [TURNS])
    assert "a.jsonl:1 is of messages, b.jsonl:1 of llava" in uncertain(tmp_path).message


def test_a_large_parquet_file_is_not_read_to_tell_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"messages": [chat("a", "b")["messages"]] * 500})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    read: list[int] = []
    group = ParquetRows._group

    def counted(rows: ParquetRows, place: int, first: int, index: int) -> Any:
        read.append(place)
        return group(rows, place, first, index)

    monkeypatch.setattr(ParquetRows, "_group", counted)
    assert detect(str(tmp_path / "rows.parquet")).format == "messages"
    assert set(read) == {0, 1}


def test_what_is_behind_the_first_rows_is_not_read(tmp_path: Path) -> None:
    rows = [chat("a", "b")] * 200
    (tmp_path / "rows.json").write_text(json.dumps(rows)[:-1] + ", and no array")
    assert detect(str(tmp_path / "rows.json")).format == "messages"
    with pytest.raises(Findings, match="broken-row"):
        open_rows("auto", tmp_path / "rows.json")


def test_questions_of_the_cauldron_are_refused_with_both_ways_to_read_them(tmp_path: Path) -> None:
    row = {"images": [], "texts": [{"user": "a", "assistant": "b", "source": "c"}]}
    found = uncertain(write_rows(tmp_path / "rows.jsonl", [row]))
    assert found.help is not None
    assert "texts: turns}" in found.help
    assert "texts: rows}" in found.help


def test_data_sets_of_llama_factory_are_found_by_name(tmp_path: Path) -> None:
    info = tmp_path / "dataset_info.json"
    write_rows(tmp_path / "odd.jsonl", [{"talk": []}])
    info.write_text(json.dumps({"mine": {"file_name": "odd.jsonl"}}))
    for path in (tmp_path, info):
        assert getattr(detect(str(path)), "dataset", None) == "mine"
    refused = uncertain(tmp_path / "odd.jsonl")
    assert refused.help is not None
    assert f"{{format: llama_factory, path: {info}, dataset: mine}}" in refused.help
    info.write_text(json.dumps({"mine": {"file_name": "odd.jsonl"}, "other": {}}))
    assert "has 2 data sets: mine, other" in uncertain(info).message


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "not-for-training", "preferred"),
        (
            {"data_source": "x", "prompt": [], "reward_model": {"ground_truth": "4"}},
            "not-for-training",
            "reward",
        ),
        ({"text": "a", "score": 1}, "layout-not-certain", "its keys are text, score"),
        ({"conversations": [[{"from": "human", "value": "a"}]]}, "layout-not-certain", "unpack"),
        ("{", "layout-not-certain", "no row among the first that can be read"),
    ],
)
def test_what_is_of_no_layout_is_refused_by_name(
    tmp_path: Path, row: Any, rule: str, words: str
) -> None:
    found = uncertain(write_rows(tmp_path / "rows.jsonl", [row]))
    assert found.rule == rule
    assert words in found.message


def test_files_of_a_folder_that_are_not_read_are_said_once(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [chat("a", "b")])
    reader = open_rows("messages", tmp_path)
    for name in ("cat.png", "README.txt", ".hidden.csv"):
        (tmp_path / name).touch()
    (tmp_path / "pictures").mkdir()
    assert source_messages(reader.describe()) == []
    for name in ("b.csv", "C.JSONL", "d.txt", "e.jsonl.gz", "more/f.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert source_messages(reader.describe()) == [
        f"5 in {tmp_path} may have rows, and are not read: C.JSONL, b.csv, d.txt, e.jsonl.gz, more/"
    ]


def test_rows_in_a_list_of_one_object_are_refused_with_what_takes_them_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"info": "mine", "data": [chat("a", "b")] * 3}))
    with pytest.raises(Findings) as caught:
        detect(str(path))
    (found,) = caught.value.diagnostics
    assert found.message == f'{path} is one object, whose "data" has a list of 3'
    assert found.help is not None
    assert "jq -c '.[\"data\"][]'" in found.help


@pytest.mark.parametrize(
    ("count", "layout", "expected"),
    [(2, "swift", "2 ms-swift rows"), (1, "swift", "1 ms-swift row")],
)
def test_a_source_is_described_without_saying_rows_twice(
    count: int, layout: str, expected: str
) -> None:
    assert describe_source({"rows": count, "format": "auto", "layout": layout}) == expected
