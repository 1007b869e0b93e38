"""The state of whichever Adam megatron-core has found is saved and taken up whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.megatron.test_engine import CASES, OPTIM, TEXT_STEP, build, take_step
from tests.engines.ranks import run_ranks
from tests.engines.state import model_of, optimizer_of, state_of
from tests.runs import relative_difference
from vtool.engines.megatron.engine import MegatronEngine
from vtool.engines.ranks import Ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
SPREAD = ("dp2, distributed optimizer", pytest.param("tp2", marks=pytest.mark.soak))
SAVED_AFTER = TEXT_STEP + 1


class GroupAdam(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) that counts its steps as Transformer Engine's and apex's FusedAdam
    do: in each group that has parameters.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        *,
        adam_w_mode: bool,
    ) -> None:
        assert adam_w_mode
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = count = group.get("step", 0) + 1
            (one, two), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state["exp_avg"] = state.get("exp_avg", torch.zeros_like(parameter)).lerp(
                    parameter.grad, 1 - one
                )
                square = state["exp_avg_sq"] = (
                    two * state.get("exp_avg_sq", torch.zeros_like(parameter))
                    + (1 - two) * parameter.grad**2
                )
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.sub_(
                    lr
                    * mean
                    / (1 - one**count)
                    / ((square / (1 - two**count)).sqrt() + group["eps"])
                )


@contextmanager
def found_by_megatron() -> Iterator[None]:
    """Put an Adam where megatron-core has Transformer Engine's FusedAdam, if that is installed."""
    import megatron.core.optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron.core.optimizer, "Adam", GroupAdam)
        patch.setattr(megatron.core.optimizer.distrib_optimizer, "Adam", GroupAdam)
        patch.setattr(megatron.core.optimizer, "USING_PYTORCH_OPTIMIZER", False)
        yield


def trained(engine: MegatronEngine, steps: range) -> dict[str, Tensor]:
    for step in steps:
        take_step(engine, step)
        engine.clip_gradient(OPTIM.clip_norm)
        engine.optimizer_step(OPTIM.lr)
    return {**model_of(engine), **optimizer_of(engine)}


def gone_on(ranks: Ranks, name: str) -> dict[str, dict[str, Tensor]]:
    """All steps, with torch's Adam, with another, and with that one taken up on the way from itself
    or from torch's.
    """
    torchs = build(CASES[name], ranks, tied=True)
    trained(torchs, range(SAVED_AFTER))
    of_torch = ranks.all_gather_objects(state_of(torchs))[0]
    ends = {"torch": trained(torchs, range(SAVED_AFTER, 5))}
    with found_by_megatron():
        straight = build(CASES[name], ranks, tied=True)
        assert all(type(part.optimizer.optimizer) is GroupAdam for part in straight.both)
        trained(straight, range(SAVED_AFTER))
        own = ranks.all_gather_objects(state_of(straight))[0]
        ends |= {"saved": own[1], "straight": trained(straight, range(SAVED_AFTER, 5))}
        for start, saved in (("from itself", own), ("from torch", of_torch)):
            again = build(CASES[name], ranks, tied=True)
            trained(again, range(1))  # what it has counted so far is forgotten
            again.load_state(*saved)
            ends[start] = trained(again, range(SAVED_AFTER, 5))
    back = build(CASES[name], ranks, tied=True)
    back.load_state(*own)
    ends["with torch again"] = trained(back, range(SAVED_AFTER, 5))
    return ends


@pytest.mark.full
@pytest.mark.parametrize("name", SPREAD)
def test_an_optimizer_that_counts_by_group_resumes_where_it_was(name: str) -> None:
    ends = run_ranks(gone_on, 2, name)[0]
    counted = {key: int(tensor) for key, tensor in ends["saved"].items() if key.endswith(".step")}
    assert len(counted) == len(ends["saved"]) // 3
    # one step was without an image
    assert all(count == SAVED_AFTER - (".visual." in key) for key, count in counted.items()), name
    assert ends["from itself"].keys() == ends["straight"].keys() == ends["torch"].keys()
    assert all(
        torch.equal(ends["from itself"][key], tensor) for key, tensor in ends["straight"].items()
    ), name
    for other in ("straight", "from torch", "with torch again"):
        ours, theirs = (
            {key: one for key, one in ends[end].items() if not key.endswith(".step")}
            for end in (other, "torch")
        )
        assert relative_difference(ours, theirs) <= 1e-5, (name, other)
        assert all(
            torch.equal(ends[other][key], tensor)
            for key, tensor in ends["torch"].items()
            if key.endswith(".step")
        ), (
            name,
            other,
        )


def test_groups_of_unequal_counts_are_refused_by_an_optimizer_that_counts_by_group() -> None:
    with found_by_megatron():
        engine = build({}, Ranks(), tied=True)
        trained(engine, range(1))
        model, state = model_of(engine), optimizer_of(engine)
        key = next(key for key in state if key.endswith("q_proj.weight.step"))
        with pytest.raises(
            ValueError,
            match=r"q_proj\.weight has been updated 7 times, and others of its group 1 times",
        ):
            engine.load_state(model, {**state, key: torch.tensor(7.0)})
