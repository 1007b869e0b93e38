"""Copies on tensor parallel ranks stay equal to the bit, whatever order a kernel adds up in."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.megatron.test_engine import OPTIM, TEXT_STEP, build, take_step
from tests.engines.ranks import run_ranks
from tests.engines.state import model_of, optimizer_of
from tests.runs import relative_difference
from vtool.engines.megatron.engine import MegatronEngine
from vtool.engines.ranks import Ranks

pytestmark = pytest.mark.full

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
TWO: dict[str, dict[str, Any]] = {"tp2+sp": {"parallel": {"tensor": 2, "sequence": True}}}
FOUR: dict[str, dict[str, Any]] = {
    "tp2+sp×dp2, distributed optimizer": {
        "parallel": {"tensor": 2, "sequence": True},
        "wrap_config": {"use_distributed_optimizer": True},
    },
    "pp2×tp2": {"parallel": {"tensor": 2, "pipeline": 2}},
}


def disturb(engine: MegatronEngine) -> None:
    """Add to each gradient of the tower what the two tensor parallel ranks add up to nothing of."""
    tower = engine.module.model.visual  # type: ignore[union-attr]
    amount = (0.01, -0.01)[engine.groups.tensor_rank]
    for parameter in tower.parameters() if tower is not None else ():  # type: ignore[union-attr,operator]
        parameter.register_hook(lambda gradient: gradient + amount)


def apart(engine: MegatronEngine) -> float:
    """The largest difference between tensor parallel ranks' copies."""
    with engine.evaluating():
        copies = [
            one.detach().flatten()
            for one in engine.module.parameters()
            if not getattr(one, "tensor_model_parallel", False)
        ]
    one, other = engine.groups.gather_tensor_shares(torch.cat(copies))
    return float((one - other).abs().max())


def of_tower(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if ".visual." in name}


def trained(ranks: Ranks, spreads: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, case in spreads.items():
        kept, spread, firsts = [], [], []
        for disturbed in (False, True):
            engine = build(case, ranks, tied=True)
            if disturbed:
                disturb(engine)
            for step in range(TEXT_STEP + 2 if disturbed else 1):
                before = of_tower({**model_of(engine), **optimizer_of(engine)})
                take_step(engine, step)
                if step == 0:
                    firsts.append((engine.gradients(), float(engine.clip_gradient(None))))
                engine.clip_gradient(OPTIM.clip_norm)
                engine.optimizer_step(OPTIM.lr)
                spread.append(apart(engine))
                after = of_tower({**model_of(engine), **optimizer_of(engine)})
                kept.append(
                    before.keys() == after.keys()
                    and all(torch.equal(before[key], after[key]) for key in before)
                )
        found[name] = {"kept": kept[1:], "spread": spread, "firsts": firsts}
    return found


@pytest.mark.parametrize(
    ("world", "spreads"),
    [(2, TWO), pytest.param(4, FOUR, marks=pytest.mark.soak)],
    ids=["two ranks", "four ranks"],
)
def test_gradients_of_the_tower_that_differ_leave_its_copies_equal(
    world: int, spreads: dict[str, dict[str, Any]]
) -> None:
    everyone = run_ranks(trained, world, spreads)
    for name in spreads:
        assert [rank[name]["spread"] for rank in everyone] == [[0.0] * (TEXT_STEP + 3)] * world, (
            name
        )
        assert everyone[0][name]["kept"] == [step == TEXT_STEP for step in range(TEXT_STEP + 2)], (
            name
        )
        (wanted, norm), (found, its_norm) = everyone[0][name]["firsts"]
        assert relative_difference(found, wanted) <= 5e-6, name  # the mean of the two
        assert its_norm == pytest.approx(norm, rel=1e-5), name
