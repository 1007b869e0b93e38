"""Packed rows train as rows of their own do, on each engine and on two ranks:

the same losses, norms, first gradient and weights.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.parity import (
    Trace,
    base_model,
    largest_difference,
    largest_relative,
    made_run,
    traced,
    windowed,
)
from tests.runs import relative_difference, session
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks

# In the place of micro-batches of three rows, which `made_run` has.
PACKED = ("data.packing=token_budget", "data.micro_batch_tokens=160")
SPREAD = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "fsdp2, varlen": ("fsdp2", "model.attention=varlen"),
    "megatron": ("megatron", "engine.parallel={tensor: 2, sequence: true}"),
    "megatron, data": ("megatron",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packing")
    base_model(made)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, list[Trace]]:
    """One process, in float64."""
    return traced(
        1,
        {
            name: made_run(folder, "ddp", "float64", folder / "model", *more)
            for name, more in (("rows", ()), ("packed", PACKED))
        },
    )


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, list[Trace]]:
    runs = {
        name: made_run(folder, engine, "float32", folder / "model", *more, *PACKED)
        for name, (engine, *more) in SPREAD.items()
    }
    return traced(2, runs)


def test_in_float64_packed_rows_are_rows_of_their_own(alone: dict[str, list[Trace]]) -> None:
    """But for what transformers computes in float32 whatever the dtype:

    norms, and the tower's rotary positions.
    """
    (rows,), (packed,) = alone["rows"], alone["packed"]
    assert largest_relative(packed.losses, rows.losses) <= 1e-9
    assert largest_relative(packed.norms, rows.norms) <= 1e-7
    assert relative_difference(packed.gradients, rows.gradients) <= 1e-7
    # it was computed in another order
    assert packed.digests != rows.digests


@pytest.mark.full
@pytest.mark.parametrize("name", SPREAD)
def test_on_two_ranks_packed_rows_train_as_one_process_does(
    alone: dict[str, list[Trace]], two: dict[str, list[Trace]], name: str
) -> None:
    (rows,), ours = alone["rows"], two[name][0]
    assert relative_difference(ours.gradients, rows.gradients) <= 5e-6
    assert largest_relative(ours.losses, rows.losses) <= 1e-5
    assert largest_relative(ours.norms, rows.norms) <= 1e-5
    assert largest_difference(ours.weights, rows.weights) <= 1e-4


def test_a_row_that_is_longer_than_the_budget_stops_the_run_before_a_step(folder: Path) -> None:
    short = ("data.packing=token_budget", "data.micro_batch_tokens=20")
    with pytest.raises(
        Findings,
        match=(
            r"packing-budget.*of 20 rows have more than data.micro_batch_tokens=20 tokens, the"
            r" longest"
        ),
    ):
        session(made_run(folder, "ddp", "float32", folder / "model", *short), Ranks())


def test_a_model_with_windows_stops_megatron_before_a_step_though_no_rule_has_seen_its_folder(
    folder: Path, tmp_path: Path
) -> None:
    """Such a recipe was read before the model was there."""
    made = made_run(folder, "megatron", "float32", folder / "model", *PACKED)
    config = windowed(folder / "model", tmp_path / "model")
    later = replace(
        made,
        run=made.run.model_copy(
            update={"model": made.run.model.model_copy(update={"path": str(config)})}
        ),
    )
    with pytest.raises(
        Findings,
        match=r"not-built-on-engine.*1 of the model's 2 layers see the last 24 tokens only",
    ):
        session(later, Ranks())
    with pytest.raises(Findings, match=r"not-built-on-engine.*see the last 24 tokens only"):
        made_run(folder, "megatron", "float32", config, *PACKED)


@pytest.mark.full
def test_layers_with_a_window_train_as_on_rows_of_their_own(folder: Path, tmp_path: Path) -> None:
    model = windowed(folder / "model", tmp_path / "model", sliding_window=9)
    runs = {
        name: made_run(folder, "ddp", "float64", model, *more)
        for name, more in (("rows", ()), ("packed", PACKED))
    }
    (rows,), (packed,) = traced(1, runs).values()
    assert largest_relative(packed.losses, rows.losses) <= 1e-9
    assert relative_difference(packed.gradients, rows.gradients) <= 1e-7


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "glm4v"])
def test_each_family_with_attention_alone_packs_as_well(folder: Path, family: str) -> None:
    given = (
        f"model.family={family}",
        "data.image={min_pixels:784,max_pixels:4096}",
        "train={steps:3,epochs:null}",
    )
    runs = {
        name: made_run(folder, "ddp", "float64", None, *given, *more)
        for name, more in (("rows", ()), ("packed", PACKED))
    }
    (rows,), (packed,) = traced(1, runs).values()
    assert largest_relative(packed.losses[:1], rows.losses[:1]) <= 1e-10
    assert largest_relative(packed.losses, rows.losses) <= 1e-7
    assert relative_difference(packed.gradients, rows.gradients) <= 1e-7
    assert packed.digests != rows.digests


def test_convolutions_and_states_that_continue_into_the_next_document_are_refused(
    folder: Path,
) -> None:
    with pytest.raises(
        Findings, match=r"not-built-on-engine.*qwen3_5 continue from one document into the next"
    ):
        made_run(folder, "ddp", "float32", None, "model.family=qwen3_5", *PACKED)
