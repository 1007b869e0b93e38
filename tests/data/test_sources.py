from pathlib import Path

from tests.rows import chat, write_rows
from vtool.config.schema import MessagesSource
from vtool.data.sources import Rows


def names(*paths: Path) -> list[str]:
    rows = Rows([MessagesSource(format="messages", path=str(path)) for path in paths])
    return [rows.name(index) for index in range(len(rows))]


def test_a_row_goes_by_its_files_name_and_by_its_path_where_two_files_have_the_same(
    tmp_path: Path,
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    one, two, other = (
        write_rows(tmp_path / name, [chat("a", "b")])
        for name in ("one/rows.jsonl", "two/rows.jsonl", "other.jsonl")
    )
    assert names(one, other) == ["rows.jsonl:1", "other.jsonl:1"]
    assert names(one, two, other) == [f"{one}:1", f"{two}:1", "other.jsonl:1"]
    assert names(one, one) == ["rows.jsonl:1", "rows.jsonl:1"]
