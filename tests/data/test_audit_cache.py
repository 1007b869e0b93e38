"""Audits that are kept: unchanged rows are taken from them, and nothing that has changed."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import encoded, messages, request
from vtool.data import audit_cache
from vtool.data.audit import build_ledger
from vtool.data.audit_cache import audit_cache_folder, audit_split, usual_cache
from vtool.data.inspect_rows import inspect_rows
from vtool.data.loader import EncodedRows
from vtool.data.row_audits import ROW, RowAudits
from vtool.verification.rows import audit_rows

ROWS = 12


@pytest.fixture(autouse=True)
def small_audits_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(audit_cache, "FEWEST_ROWS", 1)
    monkeypatch.setattr(audit_cache, "WORTH", 0.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows with images whose marks are old enough to be trusted."""
    made = mixed_rows(tmp_path, ROWS, text_only=(0, 5))
    write_rows(tmp_path / "rows.jsonl", made)
    monkeypatch.setattr("vtool.data.digest.SETTLED", -1)
    return tmp_path


def rows_of(folder: Path, *overrides: str) -> EncodedRows:
    return encoded(request("rows", messages(folder / "rows.jsonl"), *overrides))[0]


def audit(rows: EncodedRows) -> RowAudits:
    """Audit all rows as a command does, and keep it."""
    cache = usual_cache(rows)
    assert cache
    audits = audit_split(rows, range(len(rows.rows)), cache)
    cache.write(audits, 1.0)
    return audits


def assert_same(mine: RowAudits, others: RowAudits) -> None:
    for name in ROW.names or ():
        np.testing.assert_array_equal(mine.table[name], others.table[name], name)
    assert mine.findings == others.findings
    assert list(mine.paths) == list(others.paths)


def test_a_second_audit_takes_all_rows_from_the_first_and_finds_the_same(folder: Path) -> None:
    rows = rows_of(folder)
    first = audit(rows)
    again = audit(rows)
    assert (first.reused, again.reused) == (0, ROWS)
    assert_same(again, first)
    assert_same(again, inspect_rows(rows_of(folder), range(ROWS), 0))
    ledgers = [build_ledger(rows, each, "train") for each in (first, again)]
    assert ledgers[0][0].as_dict() == ledgers[1][0].as_dict()
    assert "12 as audited before" in ledgers[1][0].in_words()


def test_each_rank_takes_its_share(folder: Path) -> None:
    rows = rows_of(folder)
    whole = audit(rows)
    cache = usual_cache(rows)
    shares = [audit_split(rows, range(ROWS)[rank::3], cache) for rank in range(3)]
    assert [share.reused for share in shares] == [4, 4, 4]
    assert_same(RowAudits.joined(shares), whole)


def replace_picture(folder: Path) -> None:
    picture(folder / "1-0.png", 56, 28, seed=77)


def replace_picture_and_set_its_times_back(folder: Path) -> None:
    before = os.stat(folder / "1-0.png")
    time.sleep(0.02)
    replace_picture(folder)
    os.utime(folder / "1-0.png", ns=(before.st_atime_ns, before.st_mtime_ns))


def remove_picture(folder: Path) -> None:
    (folder / "1-0.png").unlink()


@pytest.mark.parametrize(
    "change", [replace_picture, replace_picture_and_set_its_times_back, remove_picture]
)
def test_a_row_whose_picture_has_changed_is_audited_again(
    folder: Path, change: Callable[[Path], None]
) -> None:
    first = rows_of(folder)
    audit(first)
    change(folder)
    # with the tokenizer of the first, whatever of the rows can still be read
    rows, others = (EncodedRows(first.rows, first.processor, first.settings) for _ in range(2))
    again = audit(rows)
    assert again.reused == ROWS - 1
    assert_same(again, inspect_rows(others, range(ROWS), 0))


def test_a_picture_that_has_just_been_written_is_not_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.data.digest.SETTLED", 3_600_000_000_000)
    audit(rows_of(folder))
    assert audit(rows_of(folder)).reused == 2, "those without pictures"


def test_a_row_with_a_finding_is_audited_each_time(folder: Path) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps(chat("a", "")) + "\n")
    first, again = (audit(rows_of(folder)) for _ in range(2))
    assert (len(first), again.reused) == (ROWS + 1, ROWS)
    assert again.findings == first.findings != {}


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.max_length=24", "data.on_overlong=truncate"),
        ("data.image.max_pixels=784",),
        ("data.max_text_bytes=9",),
        ("data.video.fps=1",),
    ],
)
def test_other_settings_are_another_audit(folder: Path, overrides: tuple[str, ...]) -> None:
    audit(rows_of(folder))
    rows = rows_of(folder, *overrides)
    other = audit(rows)
    assert other.reused == 0
    assert_same(other, inspect_rows(rows_of(folder, *overrides), range(ROWS), 0))


def test_what_does_not_decide_leaves_it_as_it_is(folder: Path) -> None:
    audit(rows_of(folder))
    assert audit(rows_of(folder, "data.workers=0", "data.max_dropped_rows=3")).reused == ROWS


def test_other_text_is_another_audit(folder: Path) -> None:
    audit(rows_of(folder))
    text = (folder / "rows.jsonl").read_text()
    (folder / "rows.jsonl").write_text(text.replace("0 plus 0", "0 plus 9"))
    assert audit(rows_of(folder)).reused == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda processor: setattr(
            processor.tokenizer,
            "chat_template",
            processor.tokenizer.chat_template + "{# another #}",
        ),
        lambda processor: setattr(processor.image_processor, "size", {"shortest_edge": 784}),
        lambda processor: processor.tokenizer.add_tokens(["<another>"]),
    ],
)
def test_another_processor_is_another_audit(folder: Path, change: Any) -> None:
    rows = rows_of(folder)
    before = usual_cache(rows)
    change(rows.processor)
    after = usual_cache(rows)
    assert before
    assert after
    assert before.folder != after.folder


def test_a_tokenizer_that_is_python_code_has_no_entry(folder: Path) -> None:
    class Slow:
        """A tokenizer of transformers without Rust's, which has no `backend_tokenizer`."""

    rows = rows_of(folder)
    rows.processor = replace(rows.processor, tokenizer=Slow())
    assert usual_cache(rows) is None


def test_fresh_audits_all_and_off_keeps_nothing(folder: Path) -> None:
    assert usual_cache(rows_of(folder, "data.audit_cache=off")) is None
    assert not audit_cache_folder().exists()
    audit(rows_of(folder))
    assert audit(rows_of(folder, "data.audit_cache=renew")).reused == 0
    assert audit(rows_of(folder)).reused == ROWS


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["rows.npy", "stamps.npy"])
def test_a_damaged_entry_is_audited_again(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    first = audit(rows_of(folder))
    (entry,) = audit_cache_folder().iterdir()
    damage(entry / name)
    again = audit(rows_of(folder))
    assert again.reused == 0
    assert_same(again, first)
    assert audit(rows_of(folder)).reused == ROWS


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"paths": 3}'])
def test_a_damaged_head_is_audited_again(folder: Path, text: str) -> None:
    audit(rows_of(folder))
    (entry,) = audit_cache_folder().iterdir()
    (entry / "head.json").write_text(text)
    assert audit(rows_of(folder)).reused == 0


def test_where_nothing_can_be_written_the_audit_is_made_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    assert [len(audit(rows_of(folder))) for _ in range(2)] == [ROWS, ROWS]


def test_entries_that_were_not_used_for_long_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_cache, "MOST_ENTRIES", 2)
    for longest in (40, 41, 42):
        audit(rows_of(folder, f"data.max_length={longest}"))
        time.sleep(0.02)
    assert len(list(audit_cache_folder().iterdir())) == 2
    assert audit(rows_of(folder, "data.max_length=42")).reused == ROWS


def test_what_a_killed_process_was_writing_is_removed_an_hour_later(folder: Path) -> None:
    audit(rows_of(folder))
    for name, age in ((".making-old", 7200), (".making-now", 0)):
        left = audit_cache_folder() / name
        left.mkdir()
        (left / "head.json").write_text("{}")
        os.utime(left, (time.time() - age,) * 2)
    audit(rows_of(folder, "data.max_length=40"))
    names = [each.name for each in audit_cache_folder().iterdir()]
    assert ".making-old" not in names
    assert ".making-now" in names
    assert len(names) == 3


def test_of_a_picture_that_is_replaced_the_other_rows_count_as_unchanged(folder: Path) -> None:
    run = request("rows", messages(folder / "rows.jsonl")).run
    (first,) = audit_rows(run)
    assert first.ledger.reused == 0
    picture(folder / "1-0.png", 112, 56, seed=99)
    (second,) = audit_rows(run)
    assert second.ledger.reused == ROWS - 1
    lengths = [list(one.ledger.lengths) for one in (first, second)]
    assert [place for place in range(ROWS) if lengths[0][place] != lengths[1][place]] == [1]


@pytest.mark.parametrize("dated", [True, False])
def test_of_a_template_that_writes_the_day_an_audit_is_kept_for_that_day(
    folder: Path, dated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(folder)
    if dated:
        template = "{{ strftime_now('%d %b %Y') }}" + rows.processor.tokenizer.chat_template
        rows.processor.tokenizer.chat_template = template
    audit(rows)
    assert audit(rows).reused == ROWS
    monkeypatch.setattr(audit_cache, "today", lambda: datetime(2031, 1, 2))
    assert audit(rows).reused == (0 if dated else ROWS)
