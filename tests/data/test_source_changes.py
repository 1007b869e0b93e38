"""Files of rows that change during a run."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.data.containers.test_tables import saved
from tests.rows import chat, write_rows
from tests.runs import messages, request
from vtool.data.source_changes import changed_sources, marks_of
from vtool.data.sources import Rows
from vtool.engines.ranks import Ranks
from vtool.training import sft


def rows_of(path: Path) -> Rows:
    return Rows(request("rows", messages(path)).run.data.train)


def changes(rows: Rows) -> str:
    return "\n".join(f"{each.rule} {each.message}" for each in rows.changes("train"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", [chat("a", "b")] * 4)


def test_files_that_stay_as_they_are_give_no_finding(path: Path) -> None:
    rows = rows_of(path)
    assert [*map(rows.row, range(4))]
    assert changes(rows) == ""


def test_a_file_that_grows_is_reported_with_its_sizes(path: Path) -> None:
    rows, size = rows_of(path), path.stat().st_size
    with path.open("a") as file:
        file.write("{}\n")
    message = changes(rows)
    assert message.startswith("source-changed data.train: ")
    assert f"rows.jsonl: grown, from {size:,} bytes to {size + 3:,}" in message


def test_a_file_that_is_written_again_or_gone_is_reported(path: Path) -> None:
    rows = rows_of(path)
    os.utime(path, ns=(0, 0))
    assert "written again, with as many bytes" in changes(rows)
    path.unlink()
    assert "rows.jsonl is gone" in changes(rows)


def test_a_new_file_of_rows_in_a_folder_is_reported_and_other_files_are_not(path: Path) -> None:
    rows = rows_of(path.parent)
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / "run").mkdir()
    (path.parent / ".hidden.jsonl").write_text("another program's")
    assert changes(rows) == ""
    write_rows(path.parent / "more.jsonl", [chat("a", "b")])
    assert "more.jsonl is new" in changes(rows)


def test_files_that_datasets_keeps_next_to_its_rows_are_none_of_them(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"messages": [chat("a", "b")["messages"]] * 4})
    folder = saved(tmp_path / "disk", table)
    before = marks_of([str(folder)])
    assert len(before) == 2
    (folder / "cache-123.arrow").write_bytes(b"ARROW1")
    assert not list(changed_sources("train", before, marks_of([str(folder)])))
    (folder / "data-00001-of-00002.arrow").write_bytes(b"ARROW1")
    assert len(list(changed_sources("train", before, marks_of([str(folder)])))) == 1


def test_of_many_changes_the_first_are_named(tmp_path: Path) -> None:
    before = {f"{number}.jsonl": (1, 1) for number in range(9)}
    (finding,) = changed_sources("train", before, {})
    assert "2.jsonl is gone" in finding.message
    assert "3.jsonl" not in finding.message
    assert "… and 6 more" in finding.message


def test_a_run_on_a_file_that_grows_ends_well_and_says_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sft.train_loop

    def grows(*given: Any) -> Any:
        with path.open("a") as file:
            file.write(path.read_text().splitlines()[0] + "\n")
        return real(*given)

    monkeypatch.setattr(sft, "train_loop", grows)
    settings = ["train={steps:2,epochs:null}", "optim.warmup_steps=0"]
    made = request("rows", messages(path), f"run.dir={path.parent / 'run'}", *settings)
    outcome = sft.train(made, Ranks())
    assert outcome.status == "finished"
    assert [(each.rule, each.severity) for each in outcome.findings] == [
        ("source-changed", "warning")
    ]
