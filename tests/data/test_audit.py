"""The audit: every row is looked at, and kept or dropped for a reason."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.rows import chat, decompression_bomb, mixed_rows, picture, write_rows
from tests.runs import encoded, messages, request
from vtool.data.audit import audit_warnings, build_ledger, set_digests
from vtool.data.inspect_rows import _Inspector, inspect_rows
from vtool.data.loader import EncodedRows, MicroBatch, load_steps
from vtool.data.row import Row
from vtool.data.row_audits import ROW
from vtool.diagnostics import Diagnostic, Findings, Origin


def rows_of(folder: Path, rows: list[Any], *overrides: str) -> EncodedRows:
    return encoded(request("rows", messages(write_rows(folder / "rows.jsonl", rows)), *overrides))[
        0
    ]


def audit_of(rows: EncodedRows, workers: int = 0) -> Any:
    return build_ledger(rows, inspect_rows(rows, range(len(rows.rows)), workers), "train")


def test_the_audit_of_healthy_rows_finds_nothing(tmp_path: Path) -> None:
    ledger, findings = audit_of(rows_of(tmp_path, mixed_rows(tmp_path, 12, text_only=(0, 5))))
    assert findings == ()
    assert tuple(ledger.kept) == tuple(range(12))
    assert ledger.images == 12  # ten rows have an image, two of them a second one
    assert ledger.turns == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_the_audit_finds_everything_at_once(tmp_path: Path, workers: int) -> None:
    made = [chat("a", "b"), '{"messages"', chat("<image>", "b"), chat("a", ""), chat("a", "b")]
    ledger, findings = audit_of(rows_of(tmp_path, made), workers)
    bad = ["broken-row", "placeholder-mismatch", "no-assistant-turn"]
    assert [finding.rule for finding in findings] == [*bad, "too-many-dropped-rows"]
    assert "3 of 5 rows cannot be used; data.max_dropped_rows is 0" in findings[-1].message
    assert ledger.rows == 5
    assert tuple(ledger.kept) == (0, 4)


def test_bad_rows_are_dropped_up_to_the_number_allowed(tmp_path: Path) -> None:
    made = [chat("a", "b"), '{"messages"', chat("a", "")]
    ledger, findings = audit_of(rows_of(tmp_path, made, "data.max_dropped_rows=2"))
    assert findings == ()
    assert [(entry.row, entry.rule) for entry in ledger.dropped] == [
        ("rows.jsonl:2", "broken-row"),
        ("rows.jsonl:3", "no-assistant-turn"),
    ]
    _, findings = audit_of(rows_of(tmp_path, made, "data.max_dropped_rows=1"))
    assert [finding.rule for finding in findings] == [
        "broken-row",
        "no-assistant-turn",
        "too-many-dropped-rows",
    ]


def test_overlong_rows_are_dropped_only_where_the_recipe_says_so(tmp_path: Path) -> None:
    made = [chat("a", "b"), chat("word " * 50, "b")]
    _, findings = audit_of(rows_of(tmp_path, made, "data.max_length=30", "data.max_dropped_rows=1"))
    assert [finding.rule for finding in findings] == ["overlong-row"]
    ledger, findings = audit_of(
        rows_of(
            tmp_path, made, "data.max_length=30", "data.on_overlong=drop", "data.max_dropped_rows=1"
        )
    )
    assert findings == ()
    assert [entry.rule for entry in ledger.dropped] == ["overlong-row"]


def test_a_file_without_rows_is_a_finding(tmp_path: Path) -> None:
    _, findings = audit_of(rows_of(tmp_path, [""]))
    assert [finding.rule for finding in findings] == ["no-rows"]


def test_a_thousand_bad_rows_are_counted_not_listed(tmp_path: Path) -> None:
    _, findings = audit_of(rows_of(tmp_path, [chat("a", "b"), *[chat("a", "")] * 1000]))
    assert len(findings) == 22
    assert findings[-1].message == "… and 980 more rows"


def test_what_every_row_has_is_reported_of_one(tmp_path: Path) -> None:
    """A chat template that writes an image twice does so in every row: no row is to blame."""
    _, findings = audit_of(rows_of(tmp_path, [chat("a", "")] * 1000))
    assert [finding.rule for finding in findings] == [
        "no-assistant-turn",
        "too-many-dropped-rows",
        "no-assistant-turn",
    ]
    assert "1000 of 1000" in findings[1].message
    assert findings[-1].message == "… and 999 more rows"


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_would_end_in_a_traceback_are_findings(tmp_path: Path, workers: int) -> None:
    decompression_bomb(tmp_path / "bomb.png")
    made = [
        chat("a", "b"),
        chat("half \ud800", "b"),
        chat("<image>", "b") | {"images": ["q" * 5000]},
        chat("a", "b") | {"tools": "xx"},
        '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"messages": [{"role": "user", "content": ' + "[" * 900 + "]" * 900 + "}]}",
        '{"messages": 1' + "0" * 5000 + "}",
        chat("<image>", "b") | {"images": ["bomb.png"]},
    ]
    ledger, findings = audit_of(rows_of(tmp_path, made), workers)
    malformed, broken = "malformed-messages", "broken-row"
    wanted = [
        malformed,
        "missing-image",
        malformed,
        broken,
        malformed,
        broken,
        "too-many-pixels",
        "too-many-dropped-rows",
    ]
    assert [finding.rule for finding in findings] == wanted
    assert tuple(ledger.kept) == (0,)
    assert all(len(finding.message) < 400 for finding in findings)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_an_error_that_no_rule_is_for_is_its_rows_own_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The message has its traceback, since it may be a defect of vtool."""
    from vtool.data import encode

    real = encode.split_chat

    def breaks_on_one(row: Row, *rest: Any) -> Any:
        return real(row, *rest) if row.id != "rows.jsonl:2" else [].pop()

    rows = rows_of(tmp_path, [chat("a", "b")] * 3)
    monkeypatch.setattr(encode, "split_chat", breaks_on_one)
    ledger, (finding, too_many) = audit_of(rows, workers)
    assert tuple(ledger.kept) == (0, 2)
    assert (finding.rule, too_many.rule) == ("broken-row", "too-many-dropped-rows")
    assert (
        "rows.jsonl:2: looking at the row raised IndexError: pop from empty list (raised at "
        in finding.message
    )
    assert "tests/data/test_audit.py:" in finding.message
    assert ", called at vtool/data/encode.py:" in finding.message
    assert finding.origin is not None
    assert finding.origin.line == 2


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_an_error_that_is_not_of_the_row_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    from vtool.data import encode

    def breaks(*_: Any) -> Any:
        raise kind

    rows = rows_of(tmp_path, [chat("a", "b")])
    monkeypatch.setattr(encode, "split_chat", breaks)
    with pytest.raises(kind):
        audit_of(rows)


def test_a_ledger_says_how_many_rows_were_dropped_for_which_rule(tmp_path: Path) -> None:
    made = [chat("a", "b"), '{"messages"', chat("a", ""), chat("a", "")]
    ledger, _ = audit_of(rows_of(tmp_path, made, "data.max_dropped_rows=3"))
    assert ledger.dropped_by_rule == {"no-assistant-turn": 2, "broken-row": 1}
    assert ledger.in_words().startswith(
        "4 rows · 1 kept · 3 dropped (2 no-assistant-turn, 1 broken-row) · 0 images"
    )
    ledger, _ = audit_of(rows_of(tmp_path, made[:2], "data.max_dropped_rows=1"))
    assert "1 dropped (broken-row)" in ledger.in_words()
    ledger, _ = audit_of(rows_of(tmp_path, made[:1]))
    assert ledger.dropped_by_rule == {}
    assert "0 dropped ·" in ledger.in_words()


def test_answers_longer_than_the_model_may_write_are_counted(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [chat("a", "b"), chat("c", "12345"), chat("d", "123456")])
    ledger, _ = audit_of(rows)
    assert tuple(ledger.answers) == tuple(
        len(rows.processor.tokenizer(text).input_ids) for text in ("b", "12345", "123456")
    )
    longest = 6
    ledger = replace(ledger, answers=(1, 5, longest))

    def warned(longest: int) -> list[Diagnostic]:
        made = request(
            "rows",
            messages(tmp_path / "rows.jsonl"),
            f"evaluation.generate.max_new_tokens={longest}",
        )
        return list(audit_warnings(ledger, made.run, "test"))

    assert warned(longest) == []  # the end token need not be written
    (warning,) = warned(longest - 1)
    assert (warning.rule, warning.severity) == ("reference-too-long", "warning")
    count = sum(answer == longest for answer in ledger.answers)
    assert f"data.test: {count} of 3 answers" in warning.message
    assert warning.message.endswith(f"the longest has {longest}")


def test_answers_that_are_cut_are_reported_and_not_those_whose_end_is_kept(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "rows.jsonl", [chat("a", "yes yes yes yes yes yes yes"), chat("a", "yes")]
    )
    whole = encoded(request("rows", messages(path)))[0]
    longest = len(whole.sample(0).input_ids)
    # the last token is the line's end after the end token
    for limit, cut in ((longest - 1, ()), (longest - 3, ("rows.jsonl:1",))):
        made = request(
            "rows", messages(path), f"data.max_length={limit}", "data.on_overlong=truncate"
        )
        rows, _ = encoded(made)
        ledger, findings = build_ledger(rows, inspect_rows(rows, range(2), 0), "train")
        assert (ledger.truncated, ledger.cut, findings) == (1, cut, ())
        assert [warning.rule for warning in audit_warnings(ledger, made.run, "train")] == [
            "answer-cut-off"
        ] * len(cut)


def test_other_bytes_of_an_image_are_other_rows(tmp_path: Path) -> None:
    rows, _ = encoded(
        request("rows", messages(write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 2))))
    )
    before = build_ledger(rows, inspect_rows(rows, range(2), 0), "train")[0]
    assert (
        build_ledger(rows, inspect_rows(rows, range(2), 0), "train")[0].images_digest
        == before.images_digest
    )
    picture(tmp_path / "1-0.png", 56, 28, seed=9)
    assert (
        build_ledger(rows, inspect_rows(rows, range(2), 0), "train")[0].images_digest
        != before.images_digest
    )


def test_what_is_lost_of_pictures_is_counted_in_one_note(tmp_path: Path) -> None:
    made = []
    for number, mode in enumerate(("RGBA", "RGB", "CMYK", "RGBA")):
        name = f"{number}.{'tif' if mode == 'CMYK' else 'png'}"
        Image.new(mode, (56, 28), 7).save(tmp_path / name)
        made.append(chat(f"<image>{number}?", f"b{number}") | {"images": [name]})
    rows = rows_of(tmp_path, made)
    ledger, findings = audit_of(rows)
    assert findings == ()
    run = request("rows", messages(tmp_path / "rows.jsonl")).run
    (note,) = audit_warnings(ledger, run, "train")
    assert (note.rule, note.severity) == ("picture-converted", "note")
    assert "2 with transparency" in note.message
    assert "1 in CMYK" in note.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_with_more_text_than_may_be_is_refused(tmp_path: Path, workers: int) -> None:
    made = [chat("é" * 50, "b"), chat("é" * 49, "b")]  # 101 and 99 bytes
    rows = rows_of(tmp_path, made, "data.max_text_bytes=100", "data.max_dropped_rows=1")
    ledger, findings = audit_of(rows, workers)
    assert findings == ()
    (dropped,) = ledger.dropped
    assert dropped.rule == "too-much-text"
    assert "rows.jsonl:1 has 101 bytes of text; data.max_text_bytes is 100" in dropped.message


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_template_that_never_ends_is_one_finding_and_ends_the_audit(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.template_renderer._SECONDS", 0.2)
    rows = rows_of(tmp_path, [chat("a", "b")] * 40, "data.max_dropped_rows=40")
    again = "{% for i in range(100000) %}" * 2 + "{% endfor %}" * 2
    rows.processor.tokenizer.chat_template += again
    _, findings = audit_of(rows, workers)
    assert [finding.rule for finding in findings] == ["template-too-costly"]
    assert "runs for more than 0.2 seconds" in findings[0].message


@pytest.mark.parametrize(
    "overrides", [(), ("data.max_length=24", "data.on_overlong=truncate"), ("data.max_length=24",)]
)
def test_measured_images_have_the_audit_of_those_that_are_cut(
    tmp_path: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mixed_rows(tmp_path, 12, text_only=(0, 5))
    picture(tmp_path / "long.png", 1000, 3)
    Image.new("RGBA", (60, 40)).save(tmp_path / "clear.png")
    (tmp_path / "no.png").write_text("no image")
    made += [
        chat("<image>What?", "b") | {"images": [name]}
        for name in ("long.png", "clear.png", "no.png")
    ]
    rows = rows_of(tmp_path, made, "data.max_dropped_rows=9", *overrides)
    cut = inspect_rows(rows, range(len(made)), 0)
    assert rows.cache, "these are kept for the first steps"
    rows = rows_of(tmp_path, made, "data.max_dropped_rows=9", *overrides)
    monkeypatch.setattr("vtool.data.inspect_rows.AUDIT_CACHE_BYTES", 0)
    measured = inspect_rows(rows, range(len(made)), 0)
    assert not rows.cache
    for name in ROW.names or ():
        np.testing.assert_array_equal(measured.table[name], cut.table[name], name)
    assert measured.findings == cut.findings
    assert cut.traits() == {"alpha": 1}
    assert "broken-image" in {finding.rule for finding in cut.findings.values()}


def test_a_row_that_changes_after_its_audit_is_refused_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.data.inspect_rows.AUDIT_CACHE_BYTES", 0)
    made = mixed_rows(tmp_path, 4, text_only=(3,))
    rows = rows_of(tmp_path, made)
    set_digests(rows, inspect_rows(rows, range(4), 0))
    picture(tmp_path / "1-0.png", 56, 28, seed=99)  # of the same size: only its pixels differ
    text = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(text.replace("3 plus 3", "3 plus 4"))
    for index, changed in enumerate([False, True, False, True]):
        if changed:
            with pytest.raises(Findings, match=f"row-changed.*rows\\.jsonl:{index + 1}"):
                rows.sample(index)
        else:
            assert rows.sample(index).supervised


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_that_cannot_be_loaded_any_more_is_reported_by_name_from_a_worker_too(
    tmp_path: Path, workers: int
) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 4))
    (tmp_path / "2-0.png").write_text("no picture any more")
    steps = load_steps(rows, range(1, 5), lambda step: [MicroBatch((step - 1,))], workers)
    assert [len(next(steps)) for _ in range(2)] == [1, 1]
    with pytest.raises(Findings, match="broken-image") as caught:
        next(steps)
    (finding,) = caught.value.diagnostics
    assert finding.origin == Origin(str(tmp_path / "rows.jsonl"), 3)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # as the module does
def test_more_workers_than_cores_are_said_in_one_line(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 2))
    cores = len(os.sched_getaffinity(0))
    for workers, lines in ((cores, 0), (cores + 1, 1)):
        said: list[str] = []
        steps = load_steps(
            rows, range(2), lambda step: [MicroBatch((step,))], workers, say=said.append
        )
        assert len(list(steps)) == 2
        assert len(said) == lines
        assert not lines or f"data.workers={workers}, on {cores} core" in said[0]


@pytest.mark.full
def test_a_template_that_takes_too_long_ends_the_audit_though_a_row_after_it_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.template_renderer._SECONDS", 0.2)
    monkeypatch.setattr("vtool.data.inspect_rows._AT_ONCE", 4)
    made = [chat(text, "b") for text in ("a", "slow", "c", "d", "e", "f")]
    made[3] = {"messages": "none"}
    rows = rows_of(tmp_path, made)
    tokenizer = rows.processor.tokenizer
    tokenizer.chat_template = (
        "{% if messages[0]['content'] == 'slow' %}{% for a in range(10000) %}{% for b in"
        " range(10000) %}{% endfor %}{% endfor %}{% endif %}" + tokenizer.chat_template
    )
    audits = inspect_rows(rows, range(len(made)), 0)
    assert audits.table["index"].tolist() == [0, 1]
    assert {index: one.rule for index, one in audits.findings.items()} == {1: "template-too-costly"}


def test_a_picture_for_which_there_is_no_memory_is_no_broken_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(tmp_path, mixed_rows(tmp_path, 3))

    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", full)
    monkeypatch.setattr(Image.Image, "load", full)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", full)
    with pytest.raises(MemoryError):
        inspect_rows(rows, range(3), 0)


@pytest.mark.parametrize("key", ["tools", "reasoning_content", "content"])
def test_rows_that_are_large_in_any_part_are_not_in_memory_together(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.data.inspect_rows._MOST_AT_ONCE", 5_000)
    made: list[Any] = [chat("a", "b") for _ in range(6)]
    for row in made:
        if key == "tools":
            row["tools"] = [{"type": "function", "function": {"name": "f" * 2_000}}]
        else:
            row["messages"][1][key] = "w" * 2_000
    rows = rows_of(tmp_path, made)
    groups = list(_Inspector(rows)._groups(range(6)))
    assert [len(group) for group in groups] == [2, 2, 2]
