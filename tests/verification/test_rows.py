"""An audit without training, and what it shows of each row."""

from pathlib import Path
from typing import Any

from tests.rows import chat, mixed_rows, write_rows
from tests.runs import encoded, messages, request
from vtool.data.chat import IGNORED
from vtool.verification.rows import FIRST_ROWS, TurnSpan, audit_rows

TWO_TURNS = {
    "messages": [*chat("Hi", "Hello")["messages"], *chat("And now?", "Bye now")["messages"]]
}


def audited(folder: Path, rows: list[Any], *overrides: str, row_names: tuple[str, ...] = ()) -> Any:
    (audit,) = audit_rows(
        request("rows", messages(write_rows(folder / "rows.jsonl", rows)), *overrides).run,
        row_names,
    )
    return audit


def test_each_supervised_turn_is_a_span_of_the_rows_own_tokens(tmp_path: Path) -> None:
    audit = audited(tmp_path, [TWO_TURNS])
    (shown,) = audit.shown
    assert [span.text for span in shown.spans] == ["Hello<|im_end|>", "Bye now<|im_end|>"]
    rows, processor = encoded(request("rows", messages(tmp_path / "rows.jsonl")))
    sample = rows.sample(0)
    assert shown.tokens == len(sample.input_ids)
    covered = {place for span in shown.spans for place in range(span.start, span.end)}
    assert covered == {
        place for place, label in enumerate(sample.labels.tolist()) if label != IGNORED
    }
    for span in shown.spans:
        assert processor.tokenizer.decode(sample.input_ids[span.start : span.end]) == span.text


def test_a_span_may_end_with_the_row(tmp_path: Path) -> None:
    audit = audited(
        tmp_path, [chat("Hi", "word " * 60)], "data.max_length=30", "data.on_overlong=truncate"
    )
    (span,) = audit.shown[0].spans
    assert isinstance(span, TurnSpan)
    assert span.end == audit.shown[0].tokens == 30


def test_the_first_rows_are_shown_or_those_asked_for(tmp_path: Path) -> None:
    rows = [*mixed_rows(tmp_path, 9), "{"]
    first = [f"rows.jsonl:{number}" for number in range(1, FIRST_ROWS + 1)]
    assert [shown.row for shown in audited(tmp_path, rows).shown] == first
    audit = audited(tmp_path, rows, row_names=("8", "rows.jsonl:2", "10"))
    asked = ["rows.jsonl:2", "rows.jsonl:8", "rows.jsonl:10"]
    assert [shown.row for shown in audit.shown] == asked
    assert "broken-row" in audit.shown[-1].problem
    assert audit.shown[-1].spans == ()


def test_a_row_that_is_not_there_is_a_finding_next_to_those_that_are(tmp_path: Path) -> None:
    audit = audited(tmp_path, [TWO_TURNS], row_names=("1", "2", "x"))
    assert [(finding.message, finding.help) for finding in audit.findings] == [
        ("there is no row 2", "rows are named rows.jsonl:1"),
        ("there is no row x", "rows are named rows.jsonl:1"),
    ]
    assert [shown.row for shown in audit.shown] == ["rows.jsonl:1"]


def test_answers_that_evaluation_would_cut_off_are_a_warning(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [chat("Hi", "a b c d e f g h"), chat("Ho", "a")])
    mine = write_rows(tmp_path / "train.jsonl", [chat("Who", "b"), chat("Why", "c")])
    overrides = [
        messages(mine),
        messages(rows).replace("data.train", "data.test"),
        "evaluation.generate.max_new_tokens=2",
    ]
    train, test = audit_rows(request("rows", *overrides).run)
    assert train.findings == ()
    (warning,) = test.findings
    assert (warning.rule, warning.severity) == ("reference-too-long", "warning")
    assert "1 of 2 answers" in warning.message
