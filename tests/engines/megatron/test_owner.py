"""A tensor goes to its owner alone: from tensor parallel ranks, copies and stages."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.megatron.test_engine import CASES, OPTIM, build, take_step
from tests.engines.megatron.test_parts import QWEN, SCENARIOS, made
from tests.engines.owned import Owned, check, take
from tests.engines.ranks import run_ranks
from vtool.config.schema.megatron import Megatron as Settings
from vtool.engines.megatron.engine import MegatronEngine
from vtool.engines.ranks import Ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
TWO = (
    "tp2",
    "tp2+sp, distributed optimizer",
    "dp2, distributed optimizer, all overlapped",
    "pp2, distributed optimizer, all overlapped",
)
FOUR: dict[str, dict[str, Any]] = {
    "tp2 x dp2, distributed optimizer": {
        **CASES["dp2, distributed optimizer"],
        "parallel": {"tensor": 2},
    },
    "tp2 x pp2": {"parallel": {"tensor": 2, "pipeline": 2}},
    "dp2 x pp2": {"parallel": {"pipeline": 2}},
}
ADAPTED = ("tp2", "pp2")


def of_spread_models(ranks: Ranks, cases: dict[str, dict[str, Any]]) -> dict[str, Owned]:
    """Return the tensors that ranks are given of models trained for a step."""
    found = {}
    for name, case in cases.items():
        engine = build(case, ranks, tied=True)
        take_step(engine, 0)
        engine.clip_gradient(1.0)
        engine.optimizer_step(OPTIM.lr)
        found |= {
            f"{name}: {kind}": take(taken, ranks)
            for kind, taken in (("model", engine.model_state), ("state", engine.optimizer_state))
        }
    return found


def of_adapted_models(ranks: Ranks, dtype: torch.dtype) -> dict[str, Owned]:
    """Return the tensors that ranks are given of a model with adapters, over any dtype."""
    scenario, found = SCENARIOS["adapters everywhere"], {}
    for name in ADAPTED:
        settings = Settings(kind="megatron", **CASES[name])
        model = made(scenario, torch.float32)
        engine = MegatronEngine(model, settings, scenario.optim, ranks, dtype, QWEN.component)
        found |= {
            f"{name}: {kind}": take(partial(engine.iter_hf_weights, kind), ranks)  # type: ignore[arg-type]
            for kind in ("merged", "none", "only")
        }
    return found


def nothing(_: list[Tensor]) -> int:
    """The bytes that a rank makes of what another owns."""
    return 0


def check_all(by_rank: list[dict[str, Owned]]) -> None:
    for name in by_rank[0]:
        owned = [one[name] for one in by_rank]
        assert len(owned[0].whole) > 30, name
        check(owned, nothing)


def test_a_tensor_is_whole_on_its_owner_and_nowhere_else() -> None:
    check_all(run_ranks(of_spread_models, 2, {name: CASES[name] for name in TWO}))


@pytest.mark.full
def test_a_tensor_of_four_ranks_is_whole_on_its_owner_and_nowhere_else() -> None:
    check_all(run_ranks(of_spread_models, 4, FOUR))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adapters_are_merged_on_the_owner_alone(dtype: torch.dtype) -> None:
    check_all(run_ranks(of_adapted_models, 2, dtype))
