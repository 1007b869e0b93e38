"""Elements of a checkpoint tensor that are nowhere in the model are found, however it is loaded."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from vtool.loading import check_load_weights
from vtool.loading.probe.file_host import facts_of
from vtool.loading.probe.partly_loaded import region
from vtool.loading.verdict import judge

HEADS, SIZE, ROWS, EXPERTS = 2, 4, 10, 3
Put = Callable[["Model", str, Tensor], None]
SHAPES = {
    "k": (HEADS * SIZE, 8),
    "embed": (ROWS, 8),
    "experts": (EXPERTS, 4, 8),
    "norm": (8,),
}


def checkpoint(**larger: tuple[int, ...]) -> dict[str, Tensor]:
    """Random tensors of the model's sizes, or of larger ones."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=generator).bfloat16()
        for name, shape in (SHAPES | larger).items()
    }


class Model(nn.Module):
    """Key heads, an embedding, experts and a norm, each loaded by a function of its own."""

    def __init__(self, **put: Put) -> None:
        super().__init__()
        self.put = put
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16)))

    def load_weights(self, weights: models.Weights) -> None:
        with torch.no_grad():
            for name, tensor in weights:
                self.put.get(name, whole)(self, name, tensor)


def whole(model: Model, name: str, tensor: Tensor) -> None:
    model.get_parameter(name).copy_(tensor)


def reported(weights: Mapping[str, Tensor], **put: Put) -> dict[tuple[str, ...], str]:
    """Return the rule's message about each tensor of a model's load."""
    rules = ["partly-loaded-tensor"]
    facts = facts_of(lambda: Model(**put), weights, rules, 1, ["owned"])
    result = judge("it", facts, rules)
    assert result.checks == {"partly-loaded-tensor": "failed" if result.findings else "passed"}
    return {finding.tensors or (): finding.message for finding in result.findings}


def narrow(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor.narrow(0, 0, len(model.get_parameter(name))))


def copy_then_narrow(model: Model, name: str, tensor: Tensor) -> None:
    narrow(model, name, tensor.clone())


def cast_then_narrow(model: Model, name: str, tensor: Tensor) -> None:
    narrow(model, name, tensor.float())


def join_then_narrow(model: Model, name: str, tensor: Tensor) -> None:
    narrow(model, name, torch.cat(tensor.chunk(2)))


def scale_then_narrow(model: Model, name: str, tensor: Tensor) -> None:
    narrow(model, name, tensor * 2)


def transpose_then_narrow(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor.t().contiguous()[:, : len(model.get_parameter(name))].t())


def choose_rows(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor[torch.arange(len(model.get_parameter(name)))])


def one_by_one(model: Model, name: str, tensor: Tensor) -> None:
    for number, place in enumerate(model.get_parameter(name)):
        place.copy_(tensor[number])


CUTS = (
    narrow,
    copy_then_narrow,
    cast_then_narrow,
    join_then_narrow,
    scale_then_narrow,
    choose_rows,
    one_by_one,
)


@pytest.mark.parametrize("cut", [*CUTS, transpose_then_narrow])
def test_key_heads_that_the_parameter_has_no_place_for_are_found(cut: Put) -> None:
    found = reported(checkpoint(k=(4 * SIZE, 8)), k=cut)
    assert list(found) == [("k",)]
    assert "64 of 128 elements are nowhere: [8:16, :] of shape [16, 8]" in found["k",]


@pytest.mark.parametrize("cut", CUTS)
def test_rows_of_an_embedding_and_experts_that_are_cut_off_are_found(cut: Put) -> None:
    found = reported(checkpoint(embed=(ROWS + 1, 8), experts=(5, 4, 8)), embed=cut, experts=cut)
    ((names, message),) = found.items()
    assert names == ("embed", "experts")
    assert "8 of 88 elements are nowhere: [10:11, :] of shape [11, 8]" in message


def test_elements_that_are_passed_over_are_found_where_they_are() -> None:
    found = reported(
        checkpoint(k=(16, 8)), k=lambda model, name, tensor: whole(model, name, tensor[::2])
    )
    assert "64 of 128 elements are nowhere: from element 8 on" in found["k",]


def test_whole_numbers_are_followed_as_well() -> None:
    def packed(model: Model, name: str, tensor: Tensor) -> None:
        model.norm.copy_(tensor[:8])

    found = reported(checkpoint() | {"norm": torch.arange(12, dtype=torch.int32)}, norm=packed)
    assert "4 of 12 elements are nowhere: [8:12]" in found["norm",]


def double(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor.float() * 2 + 1)


def by_numpy(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, torch.from_numpy(tensor.float().numpy()[:, ::-1].copy()))


def mixed(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor.float() @ torch.eye(8)[:, torch.randperm(8)])


def in_two_halves(model: Model, name: str, tensor: Tensor) -> None:
    for place, part in zip(model.get_parameter(name).chunk(2), tensor.chunk(2), strict=True):
        place.copy_(part)


def turned(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor.t().contiguous().t().flip(0).roll(1, 0))


def interleaved(model: Model, name: str, tensor: Tensor) -> None:
    whole(model, name, tensor.view(2, -1, 8).transpose(0, 1).reshape(tensor.shape))


def aliased(model: Model, name: str, tensor: Tensor) -> None:
    model.get_parameter(name).data = tensor


def by_bytes(model: Model, name: str, tensor: Tensor) -> None:
    model.get_parameter(name).data.view(torch.uint8).copy_(tensor.view(torch.uint8))


def kept_beside(model: Model, name: str, tensor: Tensor) -> None:
    model.beside = [tensor.clone()]
    whole(model, name, model.beside[0])


HEALTHY = (
    whole,
    double,
    by_numpy,
    mixed,
    in_two_halves,
    turned,
    interleaved,
    aliased,
    by_bytes,
    kept_beside,
)


@pytest.mark.parametrize("put", HEALTHY)
def test_what_is_moved_or_computed_with_is_no_finding(put: Put) -> None:
    assert reported(checkpoint(), k=put, embed=put) == {}


def test_a_parameter_with_more_rows_than_the_tensor_is_no_finding_of_this_rule() -> None:
    def padded(model: Model, name: str, tensor: Tensor) -> None:
        model.embed[: len(tensor)].copy_(tensor)
        model.embed[len(tensor) :].fill_(0)

    assert reported(checkpoint(embed=(7, 8)), embed=padded) == {}


def test_a_head_that_every_part_has_is_no_finding() -> None:
    def repeated(model: Model, name: str, tensor: Tensor) -> None:
        whole(model, name, tensor.repeat_interleave(2, 0))

    assert reported(checkpoint(k=(SIZE, 8)), k=repeated) == {}


def test_a_tensor_that_is_never_read_is_another_rules() -> None:
    weights = checkpoint() | {"more": torch.ones(3)}
    assert reported(weights, more=lambda *_: None) == {}


@pytest.mark.parametrize(
    ("about", "severity"),
    [
        ({"own_twin": True}, "error"),
        ({"own_twin": False}, "note"),
        ({"own_twin": True, "renamed": ("k",)}, "note"),
        ({"own_twin": True, "added": ("k",)}, "note"),  # of a size that a table says
    ],
)
def test_of_a_twin_it_is_an_error_where_its_tensors_are_certain(
    about: dict[str, Any], severity: str
) -> None:
    rules = ["partly-loaded-tensor"]
    factory = partial(Model, k=narrow)
    facts = facts_of(factory, checkpoint(k=(4 * SIZE, 8)), rules, 1, ["owned"])
    twin = replace(facts, origin="twin", about=replace(facts.about, like="Twin", **about))
    (finding,) = judge("it", twin, rules).findings
    assert (finding.tensors, finding.severity) == (("k",), severity)


def test_a_load_that_computes_with_everything_is_not_run() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4))

        def load_weights(self, weights: models.Weights) -> None:
            for _, tensor in weights:
                self.weight.data.copy_(tensor @ tensor)

    result = check_load_weights(Sums, {"w": torch.randn(4, 4)}, checks=["partly-loaded-tensor"])
    assert (result.verdict, result.checks) == ("not-run", {"partly-loaded-tensor": "not-run"})


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([0, 1, 2], "[0:1, :]"),
        ([2, 5], "[:, 2:3]"),
        ([4], "[1:2, 1:2]"),
        ([0, 4], "from element 0"),
    ],
)
def test_a_region_is_described_as_slices_where_it_is_one(places: list[int], words: str) -> None:
    mask = torch.zeros(6, dtype=torch.bool)
    mask[places] = True
    assert region(mask, (2, 3)).startswith(words)
