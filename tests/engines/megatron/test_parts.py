"""Adapters, frozen parts and parts with learning rates of their own train as in one process in
float64, however the model is spread.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.megatron.test_engine import CASES, TEXT_STEP, take_step, train_alone
from tests.engines.megatron.tiny import tiny_model
from tests.engines.ranks import run_ranks
from tests.engines.state import state_of
from tests.runs import relative_difference
from vtool.config.schema import Freeze, Lora, Optim
from vtool.config.schema.megatron import Megatron as Settings
from vtool.engines.megatron.engine import MegatronEngine
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.models.adapters import (
    adapter_scale,
    add_adapters,
    freeze_components,
    is_adapter_name,
    merge_adapters,
    saved_name,
)
from vtool.training.optimizer import parameter_groups

pytestmark = pytest.mark.full

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
QWEN = load_family("qwen2_5_vl")
DATA, TENSOR, SEQUENCE, STAGES = (
    "dp2, distributed optimizer, all overlapped",
    "tp2",
    "tp2+sp",
    "pp2",
)


@dataclass(frozen=True)
class Scenario:
    """The parts that a run trains, and how it is spread."""

    freeze: Freeze = field(default_factory=Freeze)
    lora: Lora | None = None
    optim: Optim = field(default_factory=lambda: Optim(lr=1e-3, weight_decay=0.1, clip_norm=1.0))
    spread: tuple[str, ...] = (DATA, STAGES)
    further: tuple[str, ...] = ()
    """Ways of spreading that take their turn in `make soak`."""
    recomputed: bool = False


SCENARIOS = {
    "adapters everywhere": Scenario(
        lora=Lora(rank=3, alpha=2),
        spread=(DATA, STAGES),
        further=(TENSOR, SEQUENCE, "tp2+sp, distributed optimizer"),
    ),
    "recomputed adapters": Scenario(
        lora=Lora(rank=2, alpha=2), spread=(SEQUENCE,), further=(STAGES,), recomputed=True
    ),
    "adapters of some parts of the joined matrices": Scenario(
        Freeze(vision=True),
        Lora(rank=2, targets=("v_proj", "up_proj", "mlp.2")),
        spread=(TENSOR,),
        further=(SEQUENCE,),
    ),
    "adapters that are cut by columns": Scenario(
        lora=Lora(rank=2, targets=("o_proj", "down_proj"), exclude=("1.mlp.down_proj",)),
        spread=(SEQUENCE,),
        further=(TENSOR,),
    ),
    "adapters on the last stage alone": Scenario(
        Freeze(vision=True, projector=True),
        Lora(rank=2, targets=("3.self_attn.q_proj", "2.mlp.down_proj")),
        spread=(STAGES,),
    ),
    "no tower": Scenario(Freeze(vision=True), spread=(STAGES,), further=(DATA, SEQUENCE)),
    "the tower alone": Scenario(
        Freeze(projector=True, language=True), spread=(DATA,), further=(SEQUENCE, STAGES)
    ),
    "three rates": Scenario(
        optim=Optim.model_validate(
            {
                "lr": 1e-3,
                "weight_decay": 0.1,
                "groups": {
                    "vision": {"lr": 1e-4},
                    "projector": {"lr": 5e-3, "weight_decay": 0.0},
                    "language": {"weight_decay": 0.5},
                },
            }
        ),
        spread=(SEQUENCE,),
        further=(DATA, STAGES),
    ),
}
# Each scenario's name, and how it is spread in `make test` or in `make soak`.
TESTED = {what: scenario.spread for what, scenario in SCENARIOS.items()}
FURTHER = {what: scenario.further for what, scenario in SCENARIOS.items() if scenario.further}


@dataclass
class Trained:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    first: dict[str, Tensor] = field(default_factory=dict)
    """The gradients of step 0."""
    before: dict[str, Tensor] = field(default_factory=dict)
    after_two: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    merged: dict[str, Tensor] = field(default_factory=dict)
    resumed: list[float] = field(default_factory=list)


def made(scenario: Scenario, dtype: torch.dtype) -> Any:
    """The model as a run makes it, but that B is not 0: A has a gradient from the first step on."""
    model = tiny_model(tied=True, dtype=dtype).train()
    freeze_components(model, QWEN, scenario.freeze)
    if scenario.lora is not None:
        add_adapters(model, QWEN, scenario.freeze, scenario.lora, 0)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@cache
def alone(what: str) -> Trained:
    """One process, float64, torch's own AdamW and clipping; the loss by its definition."""
    scenario = SCENARIOS[what]
    model = made(scenario, torch.float64)
    named = {saved_name(name): parameter for name, parameter in model.named_parameters()}
    groups = parameter_groups(
        ((name, p) for name, p in named.items()), scenario.optim, QWEN.component
    )
    optimizer = torch.optim.AdamW(
        [{**group, "lr": group["lr_factor"] * scenario.optim.lr} for group in groups], foreach=False
    )
    trained = Trained(
        before={name: parameter.detach().clone() for name, parameter in named.items()}
    )
    train_alone(model, named, optimizer, trained)
    if scenario.lora is not None:
        adapter = {
            name: tensor for name, tensor in trained.weights.items() if is_adapter_name(name)
        }
        trained.merged = dict(
            merge_adapters(
                {name: w for name, w in trained.weights.items() if not is_adapter_name(name)},
                adapter,
                adapter_scale(model),
            )
        )
    return trained


def all_of(engine: MegatronEngine) -> dict[str, Tensor]:
    """The base and the adapters."""
    return {
        name: tensor.clone()
        for kind in ("none", "only")
        for name, tensor in engine.iter_hf_weights(kind)
    }


def train_all(ranks: Ranks, spreads: dict[str, tuple[str, ...]]) -> dict[str, Trained]:
    found = {}
    for what, spread in spreads.items():
        scenario = SCENARIOS[what]
        for how in spread:
            trained = found[f"{what}; {how}"] = Trained()

            def build(scenario: Scenario = scenario, how: str = how) -> MegatronEngine:
                settings = Settings(kind="megatron", **CASES[how])
                model, again = made(scenario, torch.float32), scenario.recomputed
                return MegatronEngine(
                    model,
                    settings,
                    scenario.optim,
                    ranks,
                    torch.float32,
                    QWEN.component,
                    checkpointing=again,
                )

            engine = build()
            trained.before = all_of(engine)
            saved: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
            for step in range(5):
                trained.losses.append(take_step(engine, step))
                if step == 0:
                    trained.first = engine.gradients()
                trained.norms.append(float(engine.clip_gradient(1.0)))
                engine.optimizer_step(scenario.optim.lr)
                if step == 1:
                    trained.after_two = all_of(engine)
                    saved = tuple(ranks.all_gather_objects(state_of(engine))[0])
            trained.weights = all_of(engine)
            trained.merged = {
                name: tensor.clone() for name, tensor in engine.iter_hf_weights("merged")
            }
            assert saved is not None
            other = build()
            other.load_state(*saved)
            for step in (2, 3):
                trained.resumed += [take_step(other, step), float(other.clip_gradient(1.0))]
                other.optimizer_step(scenario.optim.lr)
    return found


@pytest.fixture(scope="module")
def spread() -> dict[str, Trained]:
    return run_ranks(train_all, 2, TESTED)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def spread_further() -> dict[str, Trained]:
    return run_ranks(train_all, 2, FURTHER)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", SCENARIOS)
def test_training_is_that_of_one_process(spread: dict[str, Trained], what: str) -> None:
    for how in TESTED[what]:
        check_training(spread[f"{what}; {how}"], what, how)


@pytest.mark.soak
@pytest.mark.parametrize("what", FURTHER)
def test_training_is_that_of_one_process_however_it_is_spread(
    spread_further: dict[str, Trained], what: str
) -> None:
    for how in FURTHER[what]:
        check_training(spread_further[f"{what}; {how}"], what, how)
        check_changes(spread_further[f"{what}; {how}"], what, how)


@pytest.mark.parametrize("what", SCENARIOS)
def test_after_two_steps_what_has_changed_is_what_was_to_be_trained(
    spread: dict[str, Trained], what: str
) -> None:
    for how in TESTED[what]:
        check_changes(spread[f"{what}; {how}"], what, how)


def check_training(ours: Trained, what: str, how: str) -> None:
    wanted = alone(what)
    first = relative_difference(
        {key: tensor.double() for key, tensor in ours.first.items()}, wanted.first
    )
    weights = relative_difference(
        {key: tensor.double() for key, tensor in ours.weights.items()}, wanted.weights
    )
    print(f"{what}; {how}: gradient {first:.1e}, weights {weights:.1e}")
    assert first <= 5e-6, how
    assert ours.losses == pytest.approx(wanted.losses, rel=1e-5), how
    assert ours.norms == pytest.approx(wanted.norms, rel=1e-5), how
    assert weights <= 1e-4, how
    assert ours.resumed == pytest.approx(
        [n for step in (2, 3) for n in (wanted.losses[step], wanted.norms[step])], rel=1e-5
    ), how
    if wanted.merged:
        assert (
            relative_difference(
                {key: tensor.double() for key, tensor in ours.merged.items()}, wanted.merged
            )
            <= 1e-4
        )
        assert not any(
            torch.equal(ours.merged[key], ours.weights[key]) for key in targeted(ours.weights)
        ), how


def targeted(weights: dict[str, Tensor]) -> list[str]:
    """The weights that have an adapter."""
    prefix, end = "base_model.model.", ".lora_A.weight"
    return [
        f"{name.removeprefix(prefix).removesuffix(end)}.weight"
        for name in weights
        if name.endswith(end)
    ]


def check_changes(ours: Trained, what: str, how: str) -> None:
    scenario = SCENARIOS[what]
    model = made(scenario, torch.float32)
    declared = {
        saved_name(name)
        for name, _ in model.named_parameters()
        if (
            "lora_" in name if scenario.lora else not getattr(scenario.freeze, QWEN.component(name))
        )
    }
    changed = {
        name for name in ours.before if not torch.equal(ours.before[name], ours.after_two[name])
    }
    assert changed == declared, how
    assert all(
        torch.equal(tensor, ours.before[saved_name(name)])
        for name, tensor in model.named_parameters()
    ), how


def frozen_in_bfloat16(ranks: Ranks, rounded: bool) -> dict[str, bool]:
    scenario = Scenario(lora=Lora(rank=2))
    model = made(scenario, torch.float32)
    if rounded:  # what the second rank has of these fits into bfloat16
        for name, parameter in model.named_parameters():
            if "o_proj.base_layer" in name:
                parameter.data[:, 32:] = parameter.data[:, 32:].bfloat16().float()
    wanted = {
        saved_name(name): tensor.detach().clone() for name, tensor in model.named_parameters()
    }
    settings = Settings(kind="megatron", parallel={"tensor": 2})  # type: ignore[arg-type]
    engine = MegatronEngine(model, settings, scenario.optim, ranks, torch.bfloat16, QWEN.component)
    take_step(engine, TEXT_STEP + 1)
    engine.clip_gradient(1.0)
    engine.optimizer_step(1e-6)
    return {
        "base": all(
            torch.equal(tensor, wanted[name]) for name, tensor in engine.iter_hf_weights("none")
        ),
        "adapters": all(
            bool((tensor != wanted[name]).float().mean() > 0.9)
            for name, tensor in engine.iter_hf_weights("only")
        ),
    }


@pytest.mark.parametrize("rounded", [False, True], ids=["no share fits", "one rank's share fits"])
def test_in_bfloat16_the_base_comes_out_as_it_came_in_and_no_update_is_lost(rounded: bool) -> None:
    assert run_ranks(frozen_in_bfloat16, 2, rounded)[0] == {"base": True, "adapters": True}
