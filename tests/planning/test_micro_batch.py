"""The largest micro-batch that a recipe allows."""

from pathlib import Path

import pytest

from tests.rows import chat, write_rows
from vtool.config.load import load_run
from vtool.config.schema import Run
from vtool.planning.micro_batch import shape_of


def run_of(folder: Path, *settings: str) -> Run:
    rows = write_rows(folder / "rows.jsonl", [chat("What?", "That.")])
    given = [f"data.train=[{{format:messages,path:{rows}}}]", "optim.lr=1e-3", "train.epochs=1"]
    return load_run("rows", [*given, *settings]).run


def test_images_fill_three_quarters_of_a_row(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.max_length=100", f"data.image.max_pixels={9 * 28 * 28}")
    shape = shape_of(run)
    assert (shape.tokens, shape.image_tokens, shape.side) == (100, 9, 6)
    assert shape.images == 75 // (9 + 2)
    # from the last token before the text on, all but the last position predict one
    assert shape.supervised == 100 - 1 - (6 * 11 - 1)


def test_a_row_without_images_supervises_all_but_its_first_token(tmp_path: Path) -> None:
    shape = shape_of(run_of(tmp_path, "data.max_length=100"), images=0)
    assert (shape.images, shape.supervised) == (0, 99)


def test_an_image_that_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="9 images do not fit into a row of 20 tokens"):
        shape_of(run_of(tmp_path, "data.max_length=20"), images=9)


def test_rows_without_a_bound_are_not_guessed(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.max_length=null")
    with pytest.raises(ValueError, match="--tokens"):
        shape_of(run)
    assert shape_of(run, tokens=64).tokens == 64


def test_a_packed_row_is_as_long_as_its_budget(tmp_path: Path) -> None:
    packing = ("data.packing=token_budget", "data.micro_batch_tokens=300")
    shape = shape_of(run_of(tmp_path, *packing, "data.max_length=100"))
    assert (shape.rows, shape.tokens, shape.packed) == (1, 300, True)
