"""Adapters are found by structure, and what is merged is told from what is rounded."""

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

from vtool.watch.inject.vtool_watch.adapters import (
    AdaptedValues,
    adapted_weights,
    adapter_facts,
)


class Own(nn.Module):
    """A layer with adapters of its own, as torchtune has them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16), requires_grad=False)
        self.lora_a, self.lora_b = nn.Linear(16, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.scaling = 0.5

    def forward(self, x: Tensor) -> Tensor:
        low: Tensor = self.lora_b(self.lora_a(x))
        return x @ self.weight.T + self.scaling * low


class Wrapped(nn.Module):
    """A layer around another, as Megatron-Bridge has them."""

    def __init__(self) -> None:
        super().__init__()
        self.to_wrap = nn.Linear(16, 8).requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 8))


class Attention(nn.Module):
    """Low-rank matrices that adapt nothing, as DeepSeek's."""

    def __init__(self) -> None:
        super().__init__()
        self.q_a_proj, self.q_b_proj = nn.Linear(16, 2), nn.Linear(2, 8)
        self.o_proj = nn.Linear(8, 16)


def of_peft(dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64)).to(dtype)
    config = peft.LoraConfig(
        r=4, target_modules=["0", "1"], **{"init_lora_weights": False, **settings}
    )
    return peft.inject_adapter_in_model(config, model)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (of_peft, ["0.base_layer.weight", "1.base_layer.weight"]),
        (lambda: nn.Sequential(Own()), ["0.weight"]),
        (lambda: nn.Sequential(Wrapped()), ["0.to_wrap.weight"]),
        (lambda: nn.Sequential(Attention(), nn.Linear(4, 4)), []),
    ],
)
def test_adapted_weights_are_found_by_structure(model: Callable[[], Any], names: list[str]) -> None:
    assert [one.name for one in adapted_weights(model())] == names


def facts_of(model: Any) -> dict[str, Any]:
    owned = {id(p) for p in model.parameters() if p.requires_grad}
    found = adapter_facts(model, adapted_weights(model), owned, shared_out=False)
    assert found is not None
    return found


@pytest.mark.parametrize("model", [of_peft, lambda: nn.Sequential(Own(), Wrapped())])
def test_a_base_that_is_trained_beside_adapters_is_counted(model: Callable[[], Any]) -> None:
    made = model()
    assert facts_of(made)["n_base_trained"] == 0
    assert facts_of(made.requires_grad_(True))["n_base_trained"] == 2
    for one in adapted_weights(made):
        for own in one.own:
            own.requires_grad_(False)
    assert facts_of(made)["n_base_trained"] == 0  # adapters that are done with


@pytest.mark.parametrize("model", [of_peft, lambda: nn.Sequential(Own())])
def test_what_is_merged_is_the_product_of_the_adapters(model: Callable[[], Any]) -> None:
    made, values = model(), AdaptedValues()
    weights = adapted_weights(made)
    values.keep(weights)
    for one in weights:
        module = one.module
        delta = (
            module.get_delta_weight("default")
            if hasattr(module, "get_delta_weight")
            else 0.5 * module.lora_b.weight @ module.lora_a.weight
        )
        one.weight.data += delta
    moved = values.moved(weights)
    assert moved["n_moved"] == len(weights)
    assert moved["share"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("scale", [1e-2, 0.1, 1.0])
def test_a_product_of_the_size_of_the_rounding_of_16_bits_is_seen(scale: float) -> None:
    made, values = of_peft(torch.bfloat16), AdaptedValues()
    for name, p in made.named_parameters():
        if "lora_B" in name:
            p.data *= scale
    weights = adapted_weights(made)
    values.keep(weights)
    for one in weights:
        one.module.merge()
    assert values.moved(weights)["n_moved"] == len(weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"use_rslora": True}, {"init_lora_weights": True}]
)
@pytest.mark.parametrize("times", [1, 20])
def test_merging_and_unmerging_is_rounding(
    dtype: torch.dtype, settings: dict[str, Any], times: int
) -> None:
    made, values = of_peft(dtype, **settings), AdaptedValues()
    weights = adapted_weights(made)
    values.keep(weights)
    for _ in range(times):
        for one in weights:
            one.module.merge()
            one.module.unmerge()
    moved = values.moved(weights)
    assert moved["moved"] == [], moved


def test_a_weight_that_something_else_changes_has_moved() -> None:
    made, values = of_peft(), AdaptedValues()
    weights = adapted_weights(made)
    values.keep(weights)
    weights[0].weight.data *= 1.01
    moved = values.moved(weights[:1])
    assert moved["moved"] == ["0.base_layer.weight"]
    assert not 0.5 < moved["share"] < 1.5
    assert not moved["anew"]


def test_an_embedding_is_merged_the_other_way_round() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 12))
    config = peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
    made: Any = peft.inject_adapter_in_model(config, model)  # type: ignore[no-untyped-call]
    values, weights = AdaptedValues(), adapted_weights(made)
    values.keep(weights)
    weights[0].module.merge()
    moved = values.moved(weights)
    assert moved["n_moved"] == 1
    assert moved["share"] == pytest.approx(1, abs=1e-4)


def test_quantized_weights_are_not_judged() -> None:
    made, values = of_peft(), AdaptedValues()
    weights = adapted_weights(made)
    weights[0].weight.data = weights[0].weight.data.to(torch.uint8)
    values.keep(weights)
    moved = values.moved(weights[:1])
    assert (moved["unknown"], moved["n_moved"]) == (1, 0)
