"""Stages of a pipeline, and ranks that share experts out, against the whole."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from vtool.loading.probe.held import RankTensors
from vtool.loading.probe.ranks import RankLayout, on_two_ranks
from vtool.loading.probe.shared_out import compare_experts, compare_stages, expert_places
from vtool.loading.probe.state import MARKS, copy_state, fill_with_byte
from vtool.loading.probe.subject import Subject

LAYERS, EXPERTS = 2, 4
GENERATOR = torch.Generator().manual_seed(1)
WEIGHTS = {
    "embed": torch.randn(6, 4, generator=GENERATOR),
    **{f"layers.{n}.weight": torch.randn(4, 4, generator=GENERATOR) for n in range(LAYERS)},
    "norm": torch.randn(4, generator=GENERATOR),
    "head": torch.randn(6, 4, generator=GENERATOR),
}


def unwritten(tensor: Tensor) -> Tensor:
    module = nn.Module()
    module.one = nn.Parameter(tensor.clone())
    fill_with_byte(module, MARKS[0])
    return copy_state(module)["one"]


def stage(names: list[str], *missing: str, **other: Tensor) -> RankTensors:
    return RankTensors({name: WEIGHTS[name] for name in names} | other, missing=missing)


FIRST = stage(["embed", "layers.0.weight"], "layers.1", "norm", "head")
LAST = stage(["layers.1.weight", "norm", "head"], "embed", "layers.0")


def seen(first: RankTensors, last: RankTensors) -> dict[str | None, str | None]:
    facts = compare_stages(RankTensors(WEIGHTS), [first, last])
    assert facts.reason is None
    return {item.parameter: item.seen for item in facts.items}


def test_stages_that_hold_each_layer_once_are_right() -> None:
    assert seen(FIRST, LAST) == {}


def test_what_is_no_layer_may_be_on_both() -> None:
    both = replace(LAST, state={**LAST.state, "embed": WEIGHTS["embed"]})
    assert seen(FIRST, both) == {}


def test_a_layer_that_no_stage_has_is_found() -> None:
    assert seen(FIRST, stage(["norm", "head"], "layers.0", "layers.1")) == {
        "layers.1.weight": "on none"
    }


def test_a_layer_that_both_stages_have_is_found() -> None:
    both = replace(FIRST, state={**FIRST.state, "layers.1.weight": WEIGHTS["layers.1.weight"]})
    assert seen(replace(both, missing=()), LAST) == {"layers.1": "on both"}


def test_another_layers_values_and_none_at_all_are_found() -> None:
    swapped = stage(["norm", "head"], "layers.0", **{"layers.1.weight": WEIGHTS["layers.0.weight"]})
    empty = unwritten(WEIGHTS["norm"])
    found = seen(FIRST, replace(swapped, state={**swapped.state, "norm": empty}))
    assert set(found) == {"layers.1.weight", "norm"}
    assert "16 of 16 elements differ, on rank 1" in (found["layers.1.weight"] or "")


def test_a_name_that_one_rank_does_not_have_is_found() -> None:
    more = replace(LAST, state={**LAST.state, "scale": torch.ones(1)})
    assert seen(FIRST, more) == {"scale": "only on rank 1"}


def test_a_list_of_the_layers_that_a_stage_has_besides_the_list_of_all_is_right() -> None:
    def with_active(held: RankTensors, layers: list[int]) -> RankTensors:
        state = dict(held.state)
        aliases = []
        for place, layer in enumerate(layers):
            pair = (f"active.{place}.weight", f"layers.{layer}.weight")
            state = {pair[0]: state[pair[1]], **state}
            aliases.append(pair)
        return replace(held, state=state, aliases=tuple(aliases))

    whole = with_active(RankTensors(WEIGHTS), [0, 1])
    stages = [with_active(FIRST, [0]), with_active(LAST, [1])]
    assert compare_stages(whole, stages).items == ()
    other = {**stages[1].state, "layers.1.weight": WEIGHTS["layers.0.weight"]}
    other["active.0.weight"] = other["layers.1.weight"]
    wrong = replace(stages[1], state=other, aliases=(("layers.1.weight", "active.1.weight"),))
    assert [item.parameter for item in compare_stages(whole, [stages[0], wrong]).items] == [
        "layers.1.weight"
    ]


def test_a_model_of_which_no_layer_is_left_out_is_not_run() -> None:
    facts = compare_stages(RankTensors(WEIGHTS), [RankTensors(WEIGHTS), RankTensors(WEIGHTS)])
    assert "no layer was left" in (facts.reason or "")


GATES = torch.randn(EXPERTS, 4, 4, generator=GENERATOR)
EXPERT = {
    "mlp.experts.w13": GATES,
    "mlp.experts.bias": torch.arange(float(EXPERTS)),
    "mlp.router": torch.randn(EXPERTS, 4, generator=GENERATOR),
}


def share(experts: list[int], of: Mapping[str, Tensor] = EXPERT, **other: Tensor) -> RankTensors:
    places = torch.full((EXPERTS,), -1)
    places[experts] = torch.arange(len(experts))
    held = {
        "mlp.experts.w13": of["mlp.experts.w13"][experts],
        "mlp.experts.bias": EXPERT["mlp.experts.bias"],
    }
    return RankTensors(
        held | {"mlp.router": of["mlp.router"]} | other, experts={"mlp.experts": places}
    )


def expert_faults(*ranks: RankTensors) -> list[tuple[str | None, str | None]]:
    facts = compare_experts(RankTensors(EXPERT), ranks)
    assert facts.reason is None
    return [(item.parameter, item.seen) for item in facts.items]


@pytest.mark.parametrize("shares", [([0, 1], [2, 3]), ([0, 2], [1, 3]), ([0, 1, 2], [3])])
def test_experts_that_are_on_one_rank_each_are_right(shares: tuple[list[int], list[int]]) -> None:
    assert expert_faults(*map(share, shares)) == []
    facts = compare_experts(RankTensors(EXPERT), [share(one) for one in shares])
    assert facts.measured == {"ranks": 2, "experts": EXPERTS}


def test_the_first_half_on_every_rank_is_found() -> None:
    wrong = replace(share([0, 1]), experts=share([2, 3]).experts)
    found = expert_faults(share([0, 1]), wrong)
    assert [(name, words and words.rpartition("; ")[2]) for name, words in found] == [
        ("mlp.experts.w13", f"16 of 16 elements differ, of expert {expert} on rank 1")
        for expert in (2, 3)
    ]


def test_an_expert_on_both_ranks_or_on_none_is_found() -> None:
    assert expert_faults(share([0, 1]), share([1, 2])) == [
        ("mlp.experts.w13", "on both ranks"),
        ("mlp.experts.w13", "on no rank"),
    ]


def test_what_is_no_expert_is_compared_as_shards() -> None:
    other = share([2, 3], EXPERT | {"mlp.router": torch.zeros(EXPERTS, 4)})
    assert expert_faults(share([0, 1]), other) == []  # one rank has all of it
    lost = share([0, 1], EXPERT | {"mlp.router": torch.zeros(EXPERTS, 4)})
    ((name, words),) = expert_faults(lost, other)
    assert name == "mlp.router"
    assert "16 on none" in (words or "")


def test_a_model_without_experts_is_not_run() -> None:
    facts = compare_experts(RankTensors(EXPERT), [RankTensors(EXPERT), RankTensors(EXPERT)])
    assert "shares its experts out" in (facts.reason or "")


class Pipelined(nn.Module):
    """A layer on each of two ranks, or both on one."""

    rank, ranks = 0, 1

    def __init__(self) -> None:
        super().__init__()
        for name in ("embed", "norm", "head"):
            setattr(self, name, nn.Parameter(torch.zeros_like(WEIGHTS[name])))
        self.layers = nn.ModuleList(
            nn.Linear(4, 4, bias=False) if self.ranks == 1 or number == self.rank else nn.Identity()
            for number in range(LAYERS)
        )

    def load_weights(self, weights: models.Weights) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if name in parameters:
                parameters[name].data.copy_(tensor)


class SkipsTheFirst(Pipelined):
    """Skips the first layer, whichever stage it is on: right on the last one alone."""

    def load_weights(self, weights: models.Weights) -> None:
        left_out = "layers.0." if self.ranks > 1 else "no"
        super().load_weights(pair for pair in weights if not pair[0].startswith(left_out))


@pytest.mark.parametrize(("kind", "wrong"), [(Pipelined, []), (SkipsTheFirst, ["layers.0.weight"])])
def test_two_processes_load_their_own_layers(
    kind: type[Pipelined], wrong: list[str], tmp_path: Path
) -> None:
    def start(rank: int, meeting: Path) -> None:
        kind.rank, kind.ranks = rank, 2

    def look(model: nn.Module) -> RankTensors:
        names = (name for name, one in model.named_modules() if isinstance(one, nn.Identity))
        return RankTensors(copy_state(model), missing=tuple(names))

    subject = Subject(kind, WEIGHTS, lambda model, weights: model.load_weights(weights), "given")
    layout = RankLayout(start, look, compare_stages)
    found = on_two_ranks(
        subject, {"stage-mismatch": layout}, RankTensors(WEIGHTS), tmp_path / "ranks"
    )
    facts = found["stage-mismatch"]
    assert [item.parameter for item in facts.items] == wrong
    assert facts.measured == {"ranks": 2, "on_each": [4, 4]}


def test_the_places_of_experts_are_read_from_the_modules_that_have_them() -> None:
    module = nn.Module()
    module.register_buffer("places", torch.tensor([0, -1]))
    assert list(expert_places({"a": module, "b": nn.Module()}, "places")) == ["a"]
