"""Rows whose token ids the model's embedding does not have are found; other surpluses are none."""

from dataclasses import replace
from pathlib import Path

from tests.rows import chat, write_rows
from tests.runs import encoded, messages, request
from vtool.data.audit import build_ledger
from vtool.data.inspect_rows import inspect_rows
from vtool.data.loader import EncodedRows
from vtool.diagnostics import Diagnostic

ROWS = [chat("abc", "ab"), chat("abc", "b a c"), chat("ba", "cab abc abc")]
ADDED = "b a c"


def rows_of(folder: Path, *overrides: str) -> EncodedRows:
    """Rows of which the second alone has the token that was added last."""
    made = request("rows", messages(write_rows(folder / "rows.jsonl", ROWS)), *overrides)
    rows, processor = encoded(made)
    processor.tokenizer.add_tokens(["never there", ADDED])
    return rows


def found(rows: EncodedRows, vocabulary: int | None, split: str = "train") -> list[Diagnostic]:
    rows.processor = replace(rows.processor, vocabulary=vocabulary)
    return list(build_ledger(rows, inspect_rows(rows, range(len(ROWS)), 0), split)[1])


def test_a_row_with_an_id_that_the_embedding_does_not_have_is_one_finding(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    last = len(rows.processor.tokenizer) - 1
    (finding,) = found(rows, last)
    assert finding.rule == "token-without-embedding"
    assert f"1 of 3 rows have token ids up to {last}," in finding.message
    assert f"has {last} rows" in finding.message
    assert finding.message.endswith(f"rows.jsonl:2 has {last} ({ADDED})")


def test_an_embedding_that_has_the_highest_id_that_is_used_is_large_enough(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    size = len(rows.processor.tokenizer)
    for vocabulary in (size, size + 100, None):
        assert found(rows, vocabulary) == []


def test_tokens_that_no_row_has_need_no_embedding(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    size = len(rows.processor.tokenizer)
    rows.processor.tokenizer.add_tokens(["nor this one", "nor that"])
    assert len(rows.processor.tokenizer) == size + 2
    assert found(rows, size) == []


def padded_beyond(rows: EncodedRows) -> int:
    """Give rows a padding token that is beyond every token that they have; return its id."""
    size = len(rows.processor.tokenizer)
    rows.processor.tokenizer.add_tokens(["<pad>"])
    rows.processor = replace(rows.processor, ids=replace(rows.processor.ids, pad=size))
    return size


def test_a_padding_token_without_embedding_is_found_where_rows_are_padded(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "data.micro_batch_size=2")
    pad = padded_beyond(rows)
    (finding,) = found(rows, pad)
    assert finding.rule == "token-without-embedding"
    assert f"rows are padded with token {pad} (<pad>)" in finding.message
    assert found(rows, pad + 1) == []


def test_rows_that_are_never_padded_need_no_padding_token(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "data.micro_batch_size=1")
    pad = padded_beyond(rows)
    assert found(rows, pad) == []
    # they are asked several at once
    assert [one.rule for one in found(rows, pad, "validation")] == ["token-without-embedding"]
