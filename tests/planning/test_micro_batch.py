"""The largest micro-batch that a recipe allows."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.rows import chat, write_rows
from vtool.config.load import load_run
from vtool.config.schema import Run
from vtool.data.packing import pack
from vtool.data.plan import rank_micro_batches
from vtool.planning.micro_batch import passes_of, shape_of


def run_of(folder: Path, *settings: str) -> Run:
    rows = write_rows(folder / "rows.jsonl", [chat("What?", "That.")])
    given = [f"data.train=[{{format:messages,path:{rows}}}]", "optim.lr=1e-3", "train.epochs=1"]
    return load_run("rows", [*given, *settings]).run


def test_images_fill_three_quarters_of_a_row(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.max_length=100", f"data.image.max_pixels={9 * 28 * 28}")
    shape = shape_of(run, 1)
    assert (shape.tokens, shape.image_tokens, shape.side) == (100, 9, 6)
    assert shape.images == 75 // (9 + 2)
    # from the last token before the text on, all but the last position predict one
    assert shape.supervised == 100 - 1 - (6 * 11 - 1)


def test_a_row_without_images_supervises_all_but_its_first_token(tmp_path: Path) -> None:
    shape = shape_of(run_of(tmp_path, "data.max_length=100"), 1, images=0)
    assert (shape.images, shape.supervised) == (0, 99)


def test_an_image_that_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="9 images do not fit into a row of 20 tokens"):
        shape_of(run_of(tmp_path, "data.max_length=20"), 1, images=9)


def test_rows_without_a_bound_are_not_guessed(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.max_length=null")
    with pytest.raises(ValueError, match="does not bound its rows"):
        shape_of(run, 1)
    assert shape_of(run, 1, tokens=64).tokens == 64


def test_a_packed_row_is_as_long_as_its_budget(tmp_path: Path) -> None:
    packing = ("data.packing=token_budget", "data.micro_batch_tokens=300")
    shape = shape_of(run_of(tmp_path, *packing, "data.max_length=100"), 1)
    assert (shape.rows, shape.tokens, shape.packed) == (1, 300, True)


@pytest.mark.parametrize("world", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("size", [1, 4, 32])
def test_a_rank_is_planned_with_the_rows_that_the_loader_gives(
    tmp_path: Path, world: int, size: int
) -> None:
    batch = ("data.global_batch_size=32", f"data.micro_batch_size={size}", "data.max_length=100")
    run = run_of(tmp_path, *batch)
    shape = shape_of(run, world)
    given = [rank_micro_batches(np.arange(32), rank, world, size) for rank in range(world)]
    assert shape.rows == max(len(rows) for groups in given for rows in groups)
    assert passes_of(run, world, shape) == max(len(groups) for groups in given)


def test_ranks_of_one_row_get_it_once(tmp_path: Path) -> None:
    layout = "engine={kind:megatron,parallel:{tensor:2,pipeline:2}}"
    batch = ("data.global_batch_size=8", "data.micro_batch_size=8", "data.max_length=100")
    assert shape_of(run_of(tmp_path, *batch, layout), 8).rows == 4
    assert shape_of(run_of(tmp_path, *batch), 8).rows == 1


@pytest.mark.parametrize("budget", [100, 150, 300, 2000])
def test_no_packed_rank_gets_more_than_is_planned(tmp_path: Path, budget: int) -> None:
    random = Random(0)
    for world in (1, 2, 3, 8, 16):
        packing = ("data.packing=token_budget", f"data.micro_batch_tokens={budget}")
        run = run_of(tmp_path, *packing, "data.max_length=100", "data.global_batch_size=12")
        shape = shape_of(run, world)
        passes, fullest, most = passes_of(run, world, shape), 0, 0
        for least in [100, 51, 34, 1] * 20:
            lengths = [random.randint(least, 100) for _ in range(12)]
            for rank in range(world):
                groups = pack(range(12), lengths, rank, world, budget)
                most = max(most, len(groups))
                for group in groups:
                    fullest = max(fullest, sum(lengths[row] for row in group))
        # rows of the greatest length are among them, so the bound is reached where these fill it
        assert shape.tokens - 100 < fullest <= shape.tokens <= budget
        assert most <= passes
