"""A class is judged by headers, and by values that are loaded part by part."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vtool.loading.probe.by_headers import LargeFolder, header_facts
from vtool.loading.probe.coverage import MemoryView, cover
from vtool.loading.probe.errors import LoadFailed
from vtool.loading.probe.facts import About, SubjectFacts
from vtool.loading.probe.headers import read_entries

RULES = (
    "stale-reference",
    "iterator-not-exhausted",
    "unwritten-parameter",
    "partly-written-parameter",
    "unconsumed-tensor",
    "lossy-cast",
    "never-loaded",
    "wrong-place",
    "partly-loaded-tensor",
    "order-dependent",
)
Load = Callable[[nn.Module, Iterable[tuple[str, Tensor]]], object]
PLENTY = 2**33


class Toy(nn.Module):
    """Two fused matrices, and a norm, as a serving class has them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(128, 32))
        self.down = nn.Parameter(torch.empty(32, 64))
        self.norm = nn.Parameter(torch.empty(32))


def copying(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        parameters = dict(model.named_parameters())
        if name in ("gate", "up"):
            rows = slice(0, 64) if name == "gate" else slice(64, 128)
            parameters["gate_up"].data[rows].copy_(tensor)
        elif name in parameters:
            parameters[name].data.copy_(tensor)


def keeping(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        if name == "norm":
            model.norm.data = tensor
        else:
            copying(model, [(name, tensor)])


def collecting(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    copying(model, dict(weights).items())


def computing(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    copying(model, ((name, tensor + 1) for name, tensor in weights))


def half_of_down(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        if name == "down":
            model.down.data.copy_(tensor.flatten()[: 32 * 64].view(32, 64))
        else:
            copying(model, [(name, tensor)])


class TwoNorms(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.norm2 = nn.Parameter(torch.empty(32))


def exchanging(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    other = {"norm": "norm2", "norm2": "norm"}
    copying(model, ((other.get(name, name), tensor) for name, tensor in weights))


def half_of_a_copy(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    half_of_down(model, ((name, tensor.float().clone()) for name, tensor in weights))


def whole_copies(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        if name == "norm":
            model.norm.data = tensor.clone()
        else:
            copying(model, [(name, tensor.to(torch.bfloat16))])


def stopping(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    given = iter(weights)
    copying(model, [next(given) for _ in range(2)])


def tensors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    shapes = {"down": (32, 64), "gate": (64, 32), "norm": (32,), "up": (64, 32)}
    return {name: torch.rand(shape, generator=random) for name, shape in shapes.items()}


def judged(
    folder: Path,
    load: Load,
    given: Mapping[str, Tensor] | None = None,
    memory: int = PLENTY,
    make: type[Toy] = Toy,
) -> SubjectFacts:
    save_file(dict(tensors() if given is None else given), folder / "model.safetensors")
    about = About(class_name="Toy", declared_dtype="float32", dtype="float32")
    large = LargeFolder(make, load, read_entries(folder), about)
    return header_facts(large, RULES, memory, lambda stage: None)


def found(facts: SubjectFacts) -> dict[str, list[tuple[str | None, tuple[str, ...]]]]:
    return {
        rule: [(item.parameter, item.tensors) for item in check.items]
        for rule, check in facts.checks.items()
        if check.items
    }


@pytest.mark.parametrize("load", [copying, computing])
def test_a_class_that_copies_is_compared_whole(load: Load, tmp_path: Path) -> None:
    facts = judged(tmp_path, load)
    assert found(facts) == {}
    assert facts.values == {"tensors": 4, "compared": 4, "not_run": {}}
    assert [rule for rule, check in facts.checks.items() if check.reason] == ["order-dependent"]


@pytest.mark.parametrize(
    ("load", "parameters"),
    [(keeping, {"norm"}), (collecting, {"down", "gate_up", "norm"})],
)
def test_what_still_points_into_the_buffer_is_found(
    load: Load, parameters: set[str], tmp_path: Path
) -> None:
    facts = judged(tmp_path, load)
    assert {one for one, _ in found(facts)["stale-reference"]} == parameters
    assert set(found(facts)) == {"stale-reference"}
    assert facts.values == {"tensors": 4, "compared": 4, "not_run": {}}


def without(name: str) -> dict[str, Tensor]:
    return {one: tensor for one, tensor in tensors().items() if one != name}


def test_what_is_not_written_is_found_without_values(tmp_path: Path) -> None:
    assert found(judged(tmp_path, copying, without("norm"))) == {
        "unwritten-parameter": [("norm", ())]
    }
    assert found(judged(tmp_path, copying, without("up"))) == {
        "partly-written-parameter": [("gate_up", ("gate",))]
    }


def test_a_misnamed_tensor_is_found_with_the_parameter_that_waits_for_it(tmp_path: Path) -> None:
    facts = judged(tmp_path, copying, without("down") | {"model.down": tensors()["down"]})
    assert found(facts)["unwritten-parameter"] == [("down", ())]
    assert found(facts)["unconsumed-tensor"] == [(None, ("model.down",))]
    assert found(facts)["never-loaded"] == [("down", ("model.down",))]


def test_weights_in_each_others_place_are_found_without_values(tmp_path: Path) -> None:
    given = tensors() | {"norm2": torch.rand(32)}
    assert found(judged(tmp_path, copying, given, make=TwoNorms)) == {}
    assert found(judged(tmp_path, exchanging, given, make=TwoNorms)) == {
        "wrong-place": [("norm", ("norm2",)), ("norm2", ("norm",))]
    }


@pytest.mark.parametrize("load", [half_of_down, half_of_a_copy])
def test_a_tensor_that_is_read_in_part_is_found(load: Load, tmp_path: Path) -> None:
    facts = judged(tmp_path, load, tensors() | {"down": torch.rand(64, 64)})
    assert found(facts) == {"partly-loaded-tensor": [(None, ("down",))]}
    (item,) = facts.checks["partly-loaded-tensor"].items
    assert "2048 of 4096 elements are never read" in str(item.seen)


def test_copies_that_are_kept_are_read_whole(tmp_path: Path) -> None:
    facts = judged(tmp_path, whole_copies)
    assert set(found(facts)) <= {"lossy-cast"}


def test_a_load_that_stops_early_is_found(tmp_path: Path) -> None:
    facts = judged(tmp_path, stopping)
    assert [item.kind for item in facts.checks["iterator-not-exhausted"].items] == ["early"]


def test_a_wrong_shape_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="does not load"):
        judged(tmp_path, copying, tensors() | {"norm": torch.rand(31)})


def test_values_that_do_not_fit_are_not_run(tmp_path: Path) -> None:
    facts = judged(tmp_path, copying, memory=0)
    assert facts.values is not None
    assert set(facts.values["not_run"]) == set(tensors())
    assert "values of 0 of 4 tensors were compared" in str(facts.checks["stale-reference"].reason)


def test_what_is_covered_is_what_numpy_counts() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        whole = torch.zeros(12, 10)
        views = []
        for _ in range(random.integers(0, 5)):
            begin, step = random.integers(0, 6, 2), random.integers(1, 4, 2)
            view = whole[begin[0] :: step[0], begin[1] :: step[1]]
            views.append(view.T if random.integers(2) else view)
        covered = cover(MemoryView.of(whole), [MemoryView.of(view) for view in views])
        for view in views:
            view.add_(1)
        flat = whole.flatten()
        gaps = np.flatnonzero(flat.numpy() == 0)
        assert covered.elements == int((flat > 0).sum())
        assert covered.first_gap == (gaps[0] if len(gaps) else None)
        assert covered.overlaps == bool((flat > 1).any())
