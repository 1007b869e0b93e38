"""Every engine trains the same: gradients, losses and weights, against one process in float64."""

from pathlib import Path

import pytest

from tests.engines.parity import (
    Trace,
    base_model,
    changed,
    largest_difference,
    largest_relative,
    made_run,
    traced,
)
from tests.runs import relative_difference

ENGINES = ("ddp", "fsdp2")
SMALL_STEPS = ("train.steps=20", "optim.lr=1e-5", "optim.schedule=constant")
# Name: dtype and further settings, each for every engine.
SINGLE = {"float32": ("float32",)}
DOUBLE = {"float64": ("float64",)}
RECOMPUTED = {"checkpointing": ("float32", "model.gradient_checkpointing=true")}
SMALL = {
    "small steps": ("float32", *SMALL_STEPS),
    "small steps in bfloat16": ("bfloat16", *SMALL_STEPS),
    "small steps in bfloat16, states of 8 bit": ("bfloat16", *SMALL_STEPS, "optim.states=8bit"),
}
BOTH = pytest.mark.parametrize("engine", ENGINES)
EACH_DTYPE = pytest.mark.parametrize(
    ("dtype", "ranks"),
    [("float32", "two"), pytest.param("float64", "two_in_float64", marks=pytest.mark.full)],
)
"""A dtype, and the fixture that has its runs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parity")
    base_model(made)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, list[Trace]]:
    """One process."""
    return traced(
        1, {engine: made_run(folder, engine, "float64", folder / "model") for engine in ENGINES}
    )


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, list[Trace]]:
    """Two ranks."""
    return on_two(folder, SINGLE)


@pytest.fixture(scope="module")
def two_in_float64(folder: Path) -> dict[str, list[Trace]]:
    return on_two(folder, DOUBLE)


@pytest.fixture(scope="module")
def recomputed(folder: Path) -> dict[str, list[Trace]]:
    return on_two(folder, RECOMPUTED)


@pytest.fixture(scope="module")
def small(folder: Path) -> dict[str, list[Trace]]:
    return on_two(folder, SMALL)


def on_two(folder: Path, runs: dict[str, tuple[str, ...]]) -> dict[str, list[Trace]]:
    made = {
        f"{engine}, {name}": made_run(folder, engine, dtype, folder / "model", *more)
        for engine in ENGINES
        for name, (dtype, *more) in runs.items()
    }
    return traced(2, made)


@BOTH
def test_five_steps_are_those_of_one_process_in_float64(
    alone: dict[str, list[Trace]], two: dict[str, list[Trace]], engine: str
) -> None:
    check_five_steps(two[f"{engine}, float32"][0], alone)


@pytest.mark.full
@BOTH
def test_five_steps_with_recomputed_activations_are_those_of_one_process_in_float64(
    alone: dict[str, list[Trace]], recomputed: dict[str, list[Trace]], engine: str
) -> None:
    first, second = recomputed[f"{engine}, checkpointing"]
    check_five_steps(first, alone)
    assert (first.losses, first.norms) == (second.losses, second.norms)
    assert len(set(first.digests)) == len(first.digests)
    if engine == "ddp":
        assert first.digests == second.digests


def check_five_steps(ours: Trace, alone: dict[str, list[Trace]]) -> None:
    (reference,) = alone["ddp"]
    assert relative_difference(ours.gradients, reference.gradients) <= 5e-6
    assert largest_relative(ours.losses, reference.losses) <= 1e-5
    assert largest_relative(ours.norms, reference.norms) <= 1e-5
    assert largest_difference(ours.weights, reference.weights) <= 1e-4


@pytest.mark.parametrize(
    ("which", "ranks"),
    [
        pytest.param("ddp, float64", "two_in_float64", marks=pytest.mark.full),
        pytest.param("fsdp2, float64", "two_in_float64", marks=pytest.mark.full),
        ("fsdp2", "alone"),
    ],
)
def test_in_float64_five_steps_are_the_same(
    alone: dict[str, list[Trace]], request: pytest.FixtureRequest, which: str, ranks: str
) -> None:
    (reference,) = alone["ddp"]
    ours = request.getfixturevalue(ranks)[which][0]
    assert relative_difference(ours.gradients, reference.gradients) <= 1e-12
    assert largest_relative(ours.losses, reference.losses) <= 1e-12
    assert largest_relative(ours.norms, reference.norms) <= 1e-12
    assert largest_difference(ours.weights, reference.weights) <= 1e-9


@EACH_DTYPE
def test_ranks_of_ddp_have_the_same_weights_after_each_step(
    request: pytest.FixtureRequest, dtype: str, ranks: str
) -> None:
    """Each has all of them.

    Of fsdp2 no weight is on two ranks: what they see is gathered from the same shares.
    """
    first, second = request.getfixturevalue(ranks)[f"ddp, {dtype}"]
    assert first.digests == second.digests


@BOTH
@EACH_DTYPE
def test_each_step_changes_weights_and_ranks_tell_the_same_of_it(
    request: pytest.FixtureRequest, engine: str, dtype: str, ranks: str
) -> None:
    first, second = request.getfixturevalue(ranks)[f"{engine}, {dtype}"]
    assert len(set(first.digests)) == len(first.digests)
    assert (first.losses, first.norms) == (second.losses, second.norms)


@pytest.mark.soak
@pytest.mark.parametrize("how", [*SMALL][1:])
@BOTH
def test_bfloat16_is_near_float32_and_loses_no_small_update(
    small: dict[str, list[Trace]], engine: str, how: str
) -> None:
    exact, rounded = small[f"{engine}, small steps"][0], small[f"{engine}, {how}"][0]
    assert largest_relative(rounded.losses[:1], exact.losses[:1]) <= 5e-3
    assert largest_relative(rounded.norms[:1], exact.norms[:1]) <= 2e-2
    assert rounded.losses != exact.losses  # it did compute in bfloat16
    assert changed(exact) > 0.5
    assert abs(changed(rounded) / changed(exact) - 1) <= 0.01
