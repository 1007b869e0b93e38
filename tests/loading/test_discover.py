"""Names of a checkpoint, found by trying them on a class."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.loading import models
from vtool.loading.probe.discover import discover
from vtool.loading.probe.errors import NotRun


class Fused(nn.Module):
    """Takes q_proj, k_proj and v_proj into qkv_proj."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(4, 12, bias=False)
        self.norm = nn.LayerNorm(4)

    def load_weights(self, weights: models.Weights) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            part = name.partition("_proj")[0]
            if part in ("q", "k", "v"):
                start = 4 * "qkv".index(part)
                assert tensor.shape == (4, 4)
                parameters["qkv_proj.weight"].data[start : start + 4].copy_(tensor)
            elif name.startswith("norm."):
                parameters[name].data.copy_(tensor)


class Counting(Fused):
    """Raises at the end unless all tensors have come."""

    def load_weights(self, weights: models.Weights) -> None:
        kept = list(weights)
        super().load_weights(kept)
        if len(kept) < 5:
            raise ValueError("weights are missing")


class Deaf(Fused):
    def load_weights(self, weights: models.Weights) -> None:
        list(weights)


def nothing(stage: str) -> None:
    assert stage


def test_the_parts_of_a_fused_weight_are_found_with_their_shapes() -> None:
    found = discover(Fused(), nothing)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    assert shapes == {
        "q_proj.weight": (4, 4),
        "k_proj.weight": (4, 4),
        "v_proj.weight": (4, 4),
        "norm.weight": (4,),
        "norm.bias": (4,),
    }


def test_a_class_that_raises_where_not_all_have_come_is_found_out_too() -> None:
    found = discover(Counting(), nothing)
    assert set(found) == {
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "norm.weight",
        "norm.bias",
    }
    Counting().load_weights(iter(found.items()))


def test_every_element_is_written_by_one_name_only() -> None:
    found = discover(Fused(), nothing)
    assert sum(tensor.numel() for tensor in found.values()) == sum(
        parameter.numel() for parameter in Fused().parameters()
    )


def test_a_class_that_takes_nothing_is_not_judged() -> None:
    with pytest.raises(NotRun, match="for 0%"):
        discover(Deaf(), nothing)


def test_what_every_load_raises_is_the_reason() -> None:
    class Raising(Fused):
        def load_weights(self, weights: models.Weights) -> None:
            raise AttributeError("no `experts`")

    with pytest.raises(NotRun, match="it raises AttributeError: no `experts`"):
        discover(Raising(), nothing)


def test_a_load_is_run_by_what_gives_it_what_it_asks_for() -> None:
    class Asking(Fused):
        given = False

        def load_weights(self, weights: models.Weights) -> None:
            assert self.given
            super().load_weights(weights)

    def run(load: Callable[[], None]) -> None:
        Asking.given = True
        load()

    assert len(discover(Asking(), nothing, run)) == 5


def test_values_are_distinct() -> None:
    values = torch.cat([tensor.flatten() for tensor in discover(Fused(), nothing).values()])
    assert values.unique().numel() > 0.9 * values.numel()


class Experts(nn.Module):
    """Takes a matrix of every expert from one tensor, under the names that it was made with."""

    def __init__(self, gate: str, up: str | None, down: str) -> None:
        super().__init__()
        self.names = (gate, up, down)
        self.moe = nn.Module()
        self.moe.experts = nn.Module()
        self.moe.experts.w13_weight = nn.Parameter(torch.zeros(3, 8, 2))
        self.moe.experts.w2_weight = nn.Parameter(torch.zeros(3, 2, 4))

    def load_weights(self, weights: models.Weights) -> None:
        gate, up, down = self.names
        experts: Any = self.moe.experts
        for name, tensor in weights:
            if name == gate:
                experts.w13_weight.data[:, : tensor.shape[1]].copy_(tensor)
            elif name == up:
                experts.w13_weight.data[:, 4:].copy_(tensor)
            elif name == down:
                experts.w2_weight.data.copy_(tensor)


@pytest.mark.parametrize(
    "names",
    [
        ("moe.experts.fc", None, "moe.experts.proj"),
        ("moe.gate_proj.weight", "moe.up_proj.weight", "moe.down_proj.weight"),
    ],
)
def test_one_tensor_of_every_expert_is_found(names: tuple[str, str | None, str]) -> None:
    found = discover(Experts(*names), nothing)
    assert set(found) == {name for name in names if name}
    assert sum(tensor.numel() for tensor in found.values()) == 3 * 8 * 2 + 3 * 2 * 4


class Grouped(nn.Module):
    """Takes three heads of queries, and one of keys and of values, of two elements each."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(4, 10, bias=False)
        module: Any = self.qkv_proj
        module.total_num_heads, module.total_num_kv_heads, module.head_dim = 3, 1, 2

    def load_weights(self, weights: models.Weights) -> None:
        places = {"q_proj": (0, 6), "k_proj": (6, 8), "v_proj": (8, 10)}
        for name, tensor in weights:
            first, last = places[name.split(".")[0]]
            self.qkv_proj.weight.data[first:last].copy_(tensor)


def test_sizes_of_heads_are_known_of_a_module_that_has_a_head_dim_alone() -> None:
    found = discover(Grouped(), nothing)
    assert {name: tuple(one.shape) for name, one in found.items()} == {
        "q_proj.weight": (6, 4),
        "k_proj.weight": (2, 4),
        "v_proj.weight": (2, 4),
    }
