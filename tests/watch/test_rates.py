"""A rate that a schedule has not yet raised, or has lowered, is no mistake."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules
from vtool.diagnostics.result import Result


def with_rates(
    rates: Sequence[float], first: float | None = None, **reference: object
) -> list[Fact]:
    """Return facts of steps with some rates, in which the last norm does not move."""

    def change(fact: Fact) -> None:
        if fact["kind"] == "stepped":
            fact["groups"] = [{"lr": rates[fact["step"]], "tensors": 9}]
            if first is not None:
                fact["groups"][0]["initial_lr"] = first
            fact["reference"] = {"norm.weight": {"off": 1.0, "moved": 0.0, **reference}}
        if fact["kind"] == "drift" and fact["step"] > 0:
            fact.update(stuck=["norm.weight"], n_stuck=1)

    return changed(healthy(steps=len(rates)), change)


@pytest.mark.parametrize(
    ("rates", "first"),
    [
        ((0.0, 3e-8, 6e-8), 1e-5),
        ((3e-8, 6e-8, 9e-8), None),
        ((1e-5, 4e-7, 1e-9), 1e-5),
        ((1e-5, 4e-7, 1e-9), None),
    ],
    ids=["warm-up", "a warm-up by hand", "a cosine's end", "a cosine's end, by hand"],
)
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_a_rate_on_its_way_is_no_finding(
    tmp_path: Path, rates: tuple[float, ...], first: float | None, dtype: str
) -> None:
    result = conclude(tmp_path, with_rates(rates, first, dtype=dtype))
    if rates[0] < 1e-5 or dtype == "torch.float32":
        assert rules(result) == {}
    else:  # the first step has its whole rate, and loses it
        assert rules(result) == {"updates-lost-in-rounding": "warning"}


def test_updates_that_16_bits_lose_at_the_whole_rate_are_found(tmp_path: Path) -> None:
    result = conclude(tmp_path, with_rates((1e-5,) * 3, 1e-5, dtype="torch.bfloat16"))
    assert rules(result) == {"updates-lost-in-rounding": "warning"}


@pytest.mark.parametrize("rates", [(1e-5,) * 3, (1e-5, 1e-5, 1e-30)])
def test_weights_that_stand_still_at_the_whole_rate_are_found(
    tmp_path: Path, rates: tuple[float, ...]
) -> None:
    result = conclude(tmp_path, with_rates(rates, dtype="torch.float32"))
    assert rules(result) == {"parameter-stopped-moving": "warning"}


NEED_A_RATE = ("parameter-stopped-moving", "updates-lost-in-rounding", "step-not-the-optimizers")


def at_nought(
    folder: Path, rates: Sequence[float], schedule: Sequence[int], moves: bool = False
) -> Result:
    """Conclude from steps with some rates, after so many steps of a schedule."""

    def change(fact: Fact) -> None:
        step, rate = fact["step"], rates[fact["step"]]
        if fact["kind"] == "stepped":
            fact["groups"] = [{"lr": rate, "initial_lr": 1e-3, "tensors": 9, "vectors": 0}]
            fact["schedule"] = {"kind": "LambdaLR", "steps": schedule[step]}
            if rate == 0:
                fact["reference"] = {"norm.weight": {"off": 0.0, "moved": None, "age": step}}
        if fact["kind"] == "drift" and rate == 0:
            fact["compared"] = 0
            fact["digest"] = f"{step}" if moves else f"{rates.index(0.0)}"

    return conclude(folder, changed(healthy(steps=len(rates)), change))


@pytest.mark.parametrize("steps", [1, 2])
def test_too_few_steps_without_a_rate_are_no_pass(tmp_path: Path, steps: int) -> None:
    result = at_nought(tmp_path, (0.0,) * steps, range(steps))
    assert rules(result) == {}
    assert {result.checks[name] for name in NEED_A_RATE} == {"not-run"}


@pytest.mark.parametrize("steps", [3, 5])
def test_a_schedule_that_stays_at_nought_is_found(tmp_path: Path, steps: int) -> None:
    result = at_nought(tmp_path, (0.0,) * steps, range(steps))
    assert rules(result) == {"parameter-stopped-moving": "warning"}
    assert f"0 in each of {steps} steps: a schedule (LambdaLR)" in result.findings[0].message
    assert {result.checks[name] for name in NEED_A_RATE[1:]} == {"not-run"}


@pytest.mark.parametrize("steps", [2, 3])
def test_a_schedule_that_falls_to_nought_and_stays_there_is_found(
    tmp_path: Path, steps: int
) -> None:
    result = at_nought(tmp_path, (1e-3, 5e-4, *(0.0,) * steps), range(5))
    assert rules(result) == {"parameter-stopped-moving": "warning"}
    assert "from step 3 on" in result.findings[0].message


@pytest.mark.parametrize(
    ("rates", "schedule", "moves"),
    [
        ((0.0, 1e-5, 2e-5), (0, 1, 2), False),
        ((0.0, 0.0, 1e-5), (0, 0, 1), False),
        ((1e-3, 5e-4, 0.0), (0, 1, 2), False),
        ((0.0, 0.0, 0.0), (0, 1, 2), True),
    ],
    ids=["a warm-up", "stepped every second step", "the end of a run", "two optimizers"],
)
def test_a_healthy_schedule_is_no_finding(
    tmp_path: Path, rates: tuple[float, ...], schedule: tuple[int, ...], moves: bool
) -> None:
    assert rules(at_nought(tmp_path, rates, schedule, moves)) == {}


def test_a_schedule_that_is_stepped_once_an_epoch_is_a_note_and_no_pass(tmp_path: Path) -> None:
    result = at_nought(tmp_path, (0.0,) * 3, (0,) * 3)
    assert rules(result) == {"parameter-stopped-moving": "note"}
    assert {result.checks[name] for name in NEED_A_RATE} == {"not-run"}


@pytest.mark.parametrize(("made", "found"), [(6, "warning"), (None, "note")])
def test_a_schedule_that_is_never_stepped_to_the_end_of_the_run_is_found(
    tmp_path: Path, made: int | None, found: str
) -> None:
    def end(fact: Fact) -> list[Fact] | None:
        if fact["kind"] != "ended" or made is None:
            return None
        about = {"kind_of_schedule": "LambdaLR", "scheduled": 0}
        return [{**fact, "kind": "rate_ended", "model": 0, "steps": made, **about}, fact]

    def rest(fact: Fact) -> None:
        if fact["kind"] == "stepped":
            fact["groups"] = [{"lr": 0.0, "initial_lr": 1e-3, "tensors": 9, "vectors": 0}]
            fact["schedule"] = {"kind": "LambdaLR", "steps": 0}
        if fact["kind"] == "drift":
            fact["digest"] = "the same"

    result = conclude(tmp_path, changed(changed(healthy(), rest), end))
    assert rules(result) == {"parameter-stopped-moving": found}
    said = [one.message for one in result.findings]
    assert ("all 6 steps of the run" in said[0]) == (made == 6)


def test_weights_that_stand_still_on_the_way_to_a_rate_are_no_pass(tmp_path: Path) -> None:
    result = conclude(tmp_path, with_rates((3e-8, 6e-8, 9e-8), dtype="torch.float32"))
    assert result.checks["parameter-stopped-moving"] == "not-run"
    assert "look later" in result.details["parameter-stopped-moving"]["reason"]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("stepped", "groups"),
        ("arrived", "undone"),
        ("arrived", "nonfinite"),
        ("drift", "stuck"),
        ("drift", "compared"),
    ],
)
def test_a_fact_that_is_missing_is_no_pass(tmp_path: Path, kind: str, field: str) -> None:
    def drop(fact: Fact) -> None:
        if fact["kind"] == kind:
            del fact[field]

    result = conclude(tmp_path, changed(healthy(), drop))
    assert result.checks["parameter-stopped-moving"] == "not-run"
