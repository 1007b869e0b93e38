"""Every engine trains the same: gradients, losses and weights, against one process in float64."""

from pathlib import Path

import pytest

from tests.engines.parity import Trace, base_model, changed, largest_difference, largest_relative, made_run, traced
from tests.runs import relative_difference

ENGINES = [("ddp", 2), ("fsdp2", 1), ("fsdp2", 2)]
CHECKPOINTING = "model.gradient_checkpointing=true"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parity")
    base_model(made)
    return made


@pytest.fixture(scope="module")
def reference(folder: Path) -> Trace:
    (trace,) = traced("ddp", 1, made_run(folder, "ddp", "float64", folder / "model"))
    return trace


@pytest.mark.parametrize("more", [(), (CHECKPOINTING,)], ids=["plain", "checkpointing"])
@pytest.mark.parametrize(("engine", "world"), ENGINES)
def test_five_steps_are_those_of_one_process_in_float64(
    folder: Path, reference: Trace, engine: str, world: int, more: tuple[str, ...]
) -> None:
    first, *others = traced(engine, world, made_run(folder, engine, "float32", folder / "model", *more))
    assert relative_difference(first.gradients, reference.gradients) <= 5e-6
    assert largest_relative(first.losses, reference.losses) <= 1e-5
    assert largest_relative(first.norms, reference.norms) <= 1e-5
    assert largest_difference(first.weights, reference.weights) <= 1e-4
    assert len(set(first.digests)) == len(first.digests)  # every step changes something
    for other in others:
        assert other.digests == first.digests  # ranks agree to the bit after each step
        assert (other.losses, other.norms) == (first.losses, first.norms)


@pytest.mark.parametrize(("engine", "world"), ENGINES)
def test_in_float64_five_steps_are_the_same(folder: Path, reference: Trace, engine: str, world: int) -> None:
    first, *_ = traced(engine, world, made_run(folder, engine, "float64", folder / "model"))
    assert relative_difference(first.gradients, reference.gradients) <= 1e-12
    assert largest_relative(first.losses, reference.losses) <= 1e-12
    assert largest_relative(first.norms, reference.norms) <= 1e-12
    assert largest_difference(first.weights, reference.weights) <= 1e-9


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_bfloat16_is_near_float32_and_loses_no_small_update(folder: Path, engine: str) -> None:
    more = ("train.steps=20", "optim.lr=1e-5", "optim.schedule=constant")
    exact = traced(engine, 2, made_run(folder, engine, "float32", folder / "model", *more))[0]
    rounded = traced(engine, 2, made_run(folder, engine, "bfloat16", folder / "model", *more))[0]
    assert largest_relative(rounded.losses[:1], exact.losses[:1]) <= 5e-3
    assert largest_relative(rounded.norms[:1], exact.norms[:1]) <= 2e-2
    assert rounded.losses != exact.losses  # it did compute in bfloat16
    assert abs(changed(rounded) / changed(exact) - 1) <= 0.01
    assert changed(exact) > 0.5
