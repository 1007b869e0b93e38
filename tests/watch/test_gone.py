"""Gradients that were left and do not arrive, and shards that are scaled apart: from facts."""

from pathlib import Path
from typing import Any

from tests.watch.made import Fact, healthy
from tests.watch.test_conclusions import conclude
from vtool.diagnostics.result import Result

RULE, APART = "parameter-without-gradient", "gradients-differ-between-ranks"
NONE: Fact = {"n_no_gradient": 9, "left": {"tensors": 9, "gone": ["a"], "n_gone": 9}}


def with_arrived(tmp_path: Path, change: Any, world: int = 1, moved: bool = False) -> Result:
    """Return the result of facts of which `change` (step, rank) changed `arrived`."""
    facts = [dict(one) for one in healthy(world)]
    for one in facts:
        if one["kind"] == "arrived":
            one.update(change(int(one["step"]), int(one["rank"])))
        if one["kind"] == "stepped":
            one["moved"] = moved
    return conclude(tmp_path, facts)


def of(result: Result, rule: str) -> list[tuple[str, str]]:
    return [(str(one.severity), one.message) for one in result.findings if one.rule == rule]


def test_no_gradient_at_all_is_an_error_that_names_the_cause(tmp_path: Path) -> None:
    ((severity, message),) = of(with_arrived(tmp_path, lambda step, rank: NONE), RULE)
    assert severity == "error"
    assert "something zeroes them between backward() and step()" in message


def test_zeros_are_no_gradient_and_weights_may_move_by_decay(tmp_path: Path) -> None:
    zeros = {**NONE, "n_no_gradient": 0, "n_zero_gradient": 9}
    ((severity, message),) = of(with_arrived(tmp_path, lambda *_: zeros, moved=True), RULE)
    assert severity == "error"
    assert "are zeros" in message


def test_one_step_of_several_is_a_warning(tmp_path: Path) -> None:
    ((severity, _),) = of(with_arrived(tmp_path, lambda step, _: NONE if step else {}), RULE)
    assert severity == "warning"


def test_an_engine_that_has_them_is_not_run_and_named(tmp_path: Path) -> None:
    kept = {**NONE, "kept_by": "DeepSpeed's ZeRO 3", "left": None}
    result = with_arrived(tmp_path, lambda *_: kept)
    assert of(result, RULE) == []
    assert result.checks[RULE] == "not-run"


def test_weights_that_move_without_gradients_are_not_judged(tmp_path: Path) -> None:
    result = with_arrived(tmp_path, lambda *_: NONE, moved=True)
    assert of(result, RULE) == []
    assert result.checks[RULE] == "not-run"


def test_parameters_of_another_optimizer_are_not_judged(tmp_path: Path) -> None:
    """Their gradients may have been stepped with, and zeroed, before."""
    others = {**NONE, "left": None, "owned": 3}
    assert of(with_arrived(tmp_path, lambda *_: others), RULE) == []


def test_gradients_that_wait_in_fsdp2_are_an_error(tmp_path: Path) -> None:
    waiting = {"engine": "FSDP2", "tensors": 9, "replicas": False}
    changed = {**NONE, "left": None, "waiting": waiting}
    ((severity, message),) = of(with_arrived(tmp_path, lambda *_: changed, world=2), RULE)
    assert severity == "error"
    assert "set_requires_gradient_sync(False) holds for the last micro-batch too" in message
    changed["waiting"] = {**waiting, "replicas": True}
    ((_, message),) = of(with_arrived(tmp_path / "b", lambda *_: changed, world=2), RULE)
    assert "set_requires_all_reduce(False)" in message


def test_a_part_that_is_gone_in_every_step_is_a_warning(tmp_path: Path) -> None:
    part = {"left": {"tensors": 9, "gone": ["a", "b"], "n_gone": 2}}
    ((severity, message),) = of(with_arrived(tmp_path, lambda *_: part), RULE)
    assert severity == "warning"
    assert message.endswith("2 of them have none: a, b")


def test_parts_that_take_turns_are_healthy(tmp_path: Path) -> None:
    def turns(step: int, rank: int) -> Fact:
        gone = [f"layer {layer}" for layer in range(5) if layer != step]  # more layers than steps
        return {"left": {"tensors": 9, "gone": gone, "n_gone": 4}}

    assert of(with_arrived(tmp_path, turns), RULE) == []


def shards(factors: tuple[float, float], norm: float = 1.0, noise: float = 0.0) -> Any:
    """Return a change by which each of two ranks has half of the final norm's gradient."""
    sums = [0.3, -0.7, 1.1, 0.5, -0.2, 0.9, -1.3, 0.4, 0.8, -0.6, 0.25, 1.7]

    def change(step: int, rank: int) -> Fact:
        own = [
            factors[rank] * 2 * value * (1 + noise * (-1) ** at) if at // 6 == rank else None
            for at, value in enumerate(sums)
        ]
        vectors = {"norm_at": list(range(12)), "norm_sum": sums, "norm_gradient": own}
        engine = {"engine_factor": None, "engine_misfit": None}
        return {**vectors, **engine, "sharded": True, "norm": norm, "digest": f"{rank}"}

    return change


def test_shards_that_each_rank_clips_alone_are_told_as_that(tmp_path: Path) -> None:
    result = with_arrived(tmp_path, shards((0.31, 0.25)), world=2, moved=True)
    ((severity, message),) = of(result, APART)
    assert severity == "error"
    assert "(0.62 on rank 0, 0.5 on rank 1)" in message
    assert "clips by the norm of its own shards" in message
    assert of(result, "gradient-of-other-rows") == []


def test_shards_of_one_factor_are_healthy(tmp_path: Path) -> None:
    result = with_arrived(tmp_path, shards((0.5, 0.5)), world=2, moved=True)
    assert of(result, APART) == of(result, "gradient-of-other-rows") == []


def test_noise_within_shards_is_no_factor(tmp_path: Path) -> None:
    result = with_arrived(tmp_path, shards((0.31, 0.25), noise=0.3), world=2, moved=True)
    assert of(result, APART) == []
