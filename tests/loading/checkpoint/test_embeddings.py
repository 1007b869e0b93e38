"""A tied flag beside another head, and rows of the embedding that are zero."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.loading.checkpoint.folders import folder, of
from vtool.diagnostics.result import Result
from vtool.faint_rows import as_numbers, faint_rows, row_sizes, rows_at_mean
from vtool.loading.checkpoint import audit_folder

TOKENS = {"<|pad|>": 0, "<|im_start|>": 1, "<|end|>": 2, "a": 3, "Ġcontrol": 4, "<|reserved_1|>": 5}
ROWS = 12
"""The model has more rows than its tokenizer has tokens."""


def values(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((ROWS, 8)).astype(np.float32)


def in_bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def audited(path: Path, config: dict[str, Any], **tensors: Any) -> Result:
    entries = {
        f"model.{name}.weight" if name == "embed_tokens" else f"{name}.weight": (
            of("BF16", one) if one.dtype == np.uint16 else of("F32", one)
        )
        for name, one in tensors.items()
    }
    folder(path, model=entries)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    added = [{"id": row, "content": token} for token, row in TOKENS.items() if "|" in token]
    plain = {token: row for token, row in TOKENS.items() if "|" not in token}
    content = {"model": {"type": "BPE", "vocab": plain}, "added_tokens": added}
    (path / "tokenizer.json").write_text(json.dumps(content))
    return audit_folder(path)


def seen(result: Result) -> list[tuple[str, str]]:
    return [(one.rule, one.severity) for one in result.findings]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, True),
        ({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}, True),
        ({"thinker_config": {"text_config": {"tie_word_embeddings": True}}}, True),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}}, False),
        ({"vision_config": {"tie_word_embeddings": True}}, False),
        ({}, False),
    ],
)
def test_a_config_that_ties_another_head_is_an_error(
    config: dict[str, Any], error: bool, tmp_path: Path
) -> None:
    head = values()
    head[3] += 1
    result = audited(tmp_path, config, embed_tokens=values(), lm_head=head)
    assert seen(result) == [("tied-head-differs", "error")] * error
    if error:
        assert f"1 of {ROWS} rows differ" in result.findings[0].message
    else:
        assert result.checks["tied-head-differs"] == "passed"


def test_a_head_that_is_the_embedding_in_another_dtype_is_healthy(tmp_path: Path) -> None:
    rounded = as_numbers(in_bfloat16(values()).view(np.uint8).ravel(), "BF16").reshape(ROWS, 8)
    config = {"tie_word_embeddings": True}
    result = audited(tmp_path, config, embed_tokens=in_bfloat16(values()), lm_head=rounded)
    assert seen(result) == []


def test_flags_that_disagree_over_no_head_are_a_note(tmp_path: Path) -> None:
    config = {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}
    assert seen(audited(tmp_path, config, embed_tokens=values())) == [("tied-head-differs", "note")]
    both = {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": True}}
    assert seen(audited(tmp_path / "both", both, embed_tokens=values())) == []


@pytest.mark.parametrize(
    ("row", "severity"),
    [(1, "warning"), (3, "warning"), (4, "warning"), (5, "note"), (0, None), (9, None)],
)
@pytest.mark.parametrize("size", [0.0, 1e-6])
def test_a_row_of_zeros_is_reported_where_a_text_can_have_its_token(
    row: int, severity: str | None, size: float, tmp_path: Path
) -> None:
    numbers = values()
    numbers[row] *= np.float32(size)
    result = audited(tmp_path, {"pad_token_id": 0}, embed_tokens=numbers)
    assert seen(result) == [("zero-embedding-row", severity)] * (severity is not None)
    token = next((token for token, of in TOKENS.items() if of == row), "")
    assert all(f"{row} ({token!r})" in one.message for one in result.findings)


def test_padding_that_ends_answers_too_is_no_padding(tmp_path: Path) -> None:
    numbers = values()
    numbers[2] = 0
    config = {"pad_token_id": 2, "eos_token_id": [2, 7]}
    assert seen(audited(tmp_path, config, embed_tokens=numbers))[0][1] == "warning"


def test_without_a_tokenizer_rows_of_zeros_are_not_judged(tmp_path: Path) -> None:
    numbers = values()
    numbers[3] = 0
    audited(tmp_path, {}, embed_tokens=numbers)
    (tmp_path / "tokenizer.json").unlink()
    result = audit_folder(tmp_path)
    assert (result.checks["zero-embedding-row"], seen(result)) == ("not-run", [])


def test_sizes_means_and_numbers_are_those_of_numpy() -> None:
    numbers = values(3)
    numbers[5] = np.delete(numbers, 5, 0).mean(0)
    data = numbers.view(np.uint8).ravel()
    wanted = np.sqrt((numbers.astype(np.float64) ** 2).mean(1))
    sizes = row_sizes(data, "F32", ROWS)
    assert sizes is not None
    np.testing.assert_allclose(sizes, wanted, rtol=1e-12)
    assert rows_at_mean(data, "F32", ROWS) == [5]
    assert faint_rows(sizes) == []
    assert faint_rows(np.array([1.0, 2.0, 0.0, 1e-9])) == [2, 3]
    assert faint_rows(np.zeros(4)) == []
    assert row_sizes(data, "F8_E4M3", ROWS) is None
