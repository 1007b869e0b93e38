"""Tokens of rows whose row of the embedding is zero, or stays as a resize has made it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.commands import run_vtool
from tests.rows import chat, write_rows
from tests.runs import encoded, messages, request
from tests.tokenizers import qwen_like
from vtool.verification.rows import Audit, audit_rows

TOKEN = "<|im_start|>"
ADAPTERS = "lora={rank: 4}"
HIDDEN = 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return qwen_like(tmp_path / "model")


def with_embedding(model: Path, token: str | None, made: str = "zero") -> int:
    """Write an embedding of which one row is blank; two rows are never of a text."""
    _, processor = encoded(request("rows", *given(model)))
    torch.manual_seed(0)
    weight = torch.randn(processor.vocabulary or 0, HIDDEN)
    row = 0 if token is None else processor.tokenizer.convert_tokens_to_ids(token)
    if token is not None:
        weight[row] = 0 if made == "zero" else weight.mean(0) + 3e-5 * torch.randn(HIDDEN)
    tensors = {"model.embed_tokens.weight": weight.bfloat16(), "lm_head.weight": weight}
    save_file(tensors, model / "model.safetensors")
    return int(row)


def given(model: Path) -> tuple[str, ...]:
    rows = write_rows(
        model.parent / "rows.jsonl", [chat(f"What is {it}?", f"It is {it}.") for it in "ab"]
    )
    return messages(rows), f"model.path={model}", "model.size=null"


def audited(model: Path, *more: str) -> Audit:
    (audit,) = audit_rows(request("rows", *given(model), *more).run)
    return audit


@pytest.mark.parametrize(
    ("made", "more", "rule", "words"),
    [
        ("zero", (), "zero-embedding-used", "row of the embedding is zero"),
        ("zero", (ADAPTERS,), "zero-embedding-used", "is zero, and it is frozen"),
        ("zero", ("model.freeze.language=true",), "zero-embedding-used", "it is frozen"),
        ("mean", (ADAPTERS,), "token-not-learnable", "is the mean of all"),
        ("mean", ("model.freeze.language=true",), "token-not-learnable", "it is frozen"),
        ("mean", (), None, ""),
        ("mean", ("lora={rank: 4, modules_to_save: [embed_tokens]}",), None, ""),
    ],
)
def test_a_token_whose_row_is_blank_is_named(
    model: Path, made: str, more: tuple[str, ...], rule: str | None, words: str
) -> None:
    row = with_embedding(model, TOKEN, made)
    found = [one for one in audited(model, *more).findings if "embedding is" in one.message]
    assert [one.rule for one in found] == ([rule] if rule else [])
    for one in found:
        assert f"2 of 2 rows (rows.jsonl:1, …) have {row} ({TOKEN})" in one.message
        assert words in one.message


@pytest.mark.parametrize("token", [None, "<|image_pad|>", "ĊĊ"])
def test_rows_of_the_embedding_that_no_row_has_may_be_blank(model: Path, token: str | None) -> None:
    with_embedding(model, token)
    assert audited(model, ADAPTERS).findings == ()


def test_the_command_says_which_and_what_was_not_looked_at(model: Path) -> None:
    row = with_embedding(model, TOKEN)
    _, *more = given(model)
    command = ("verify", "rows.jsonl", *more[:1], "--format", "json")
    done = run_vtool(model.parent, *command)
    (result,) = json.loads(done.stdout)["results"]
    assert result["checks"]["zero-embedding-used"] == "failed"
    assert result["checks"]["token-not-learnable"] == "passed"
    (finding,) = result["findings"]
    assert f"{row} ({TOKEN})" in finding["message"]
    (model / "model.safetensors").unlink()
    (result,) = json.loads(run_vtool(model.parent, *command).stdout)["results"]
    assert result["checks"]["zero-embedding-used"] == "not-run"
