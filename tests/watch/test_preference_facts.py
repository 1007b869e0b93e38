"""Losses of preferences, from facts that are made: weights against the trainer's arguments."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.watch.made import Fact, micro, model
from tests.watch.unseen import blurred, changed, null, remove, without_kind
from vtool.watch.conclusions import preference, preference_reference, preference_sides
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck
from vtool.watch.conclusions.preference_losses import Answer, AnswerBatch, PreferenceLoss
from vtool.watch.facts import Facts

(SCALED,) = preference.CHECKS
(SIDES,) = preference_sides.CHECKS
(REFERENCE,) = preference_reference.CHECKS
LENGTHS = (5, 9, 7, 4)
PROMPT = 6
ARGUMENTS = {"beta": 0.1, "loss_type": ["sigmoid"], "gradient_accumulation_steps": 2}
KEPT = {
    "kind": "model",
    "same": False,
    "shared": 0,
    "owned": 0,
    "tensors": 9,
    "moved": 0,
    "compared": 9,
    "equal": 9,
    "ran": 4,
    "follows": [],
}
SIDES_KNOWN = {"side": [1, 1, -1, -1], "prompt": [PROMPT] * 4, "partner": [2, 3, 0, 1]}


def pass_of(index: int, weight: float, by_length: bool = False) -> Fact:
    """Return a micro-batch of two pairs, whose chosen answers weigh so much."""
    fact = micro(index, LENGTHS, weight)
    for row in fact["per_row"]:
        sign = 1 if row["row"] < len(LENGTHS) // 2 else -1
        own = sign * weight / (row["n"] if by_length else 1)
        row |= {"least": own, "greatest": own, "median": own, "sum": own * row["n"]}
        row |= {"sure": row["n"], "logp": -4.0 * row["n"], "first": PROMPT, "behind": 0}
        row |= {"positive": row["n"] if sign > 0 else 0, "negative": row["n"] if sign < 0 else 0}
        row["tokens"] = PROMPT + row["n"]
    half = len(LENGTHS) // 2
    pairs = [
        {"rows": [k, k + half], "prefix": PROMPT, "alike": False, "all": 0} for k in range(half)
    ]
    fact["dropout"] = "off"
    return {**fact, "pairs": pairs, "reference": None, "measured_weight": [-weight, 0, 0, weight]}


def run(
    weight: float = 0.1 / 2 / 2 / 2,
    arguments: Mapping[str, Any] = ARGUMENTS,
    reference: Mapping[str, Any] = KEPT,
    by_length: bool = False,
    overridden: tuple[str, ...] = (),
    changed: Mapping[str, float] = MappingProxyType({}),
    known: bool = True,
) -> Facts:
    """Return the facts of three steps of two micro-batches of two pairs."""
    lines: dict[str, tuple[Fact, ...]] = {"model": ({**model(0), "rank": 0, "step": 0},)}
    for step in range(3):
        where = {"step": step, "rank": 0}
        moved = 1 + 0.01 * step
        passes = [pass_of(index, weight * moved, by_length) for index in range(2)]
        one = {
            "kind": "preference",
            "trainer": "trl.trainer.dpo_trainer.DPOTrainer",
            "own": None,
            "overridden": list(overridden),
            "method": "dpo",
            "arguments": dict(arguments),
            "changed": dict(changed),
            "reference": dict(reference),
            "sides": [{"micro": k, **SIDES_KNOWN} for k in range(2)] if known else [],
        }
        lines["micro"] = (*lines.get("micro", ()), *({**each, **where} for each in passes))
        lines["preference"] = (*lines.get("preference", ()), {**one, **where})
    return Facts(0, lines, ({"world": 1},))


def severity(outcome: CheckOutcome) -> str:
    return str(outcome.findings[0].severity) if outcome.findings else outcome.state


@pytest.mark.parametrize("check", [SCALED, SIDES, REFERENCE], ids=lambda one: str(one.name))
def test_a_healthy_run_passes(check: WatchCheck) -> None:
    assert severity(check.outcome(run())) == "passed"


@pytest.mark.parametrize(
    ("times", "expected", "said"),
    [
        (2.0, "error", "2 micro-batches, and is not divided"),
        (0.5, "error", "divided by its 2 micro-batches twice"),
        (3.0, "warning", "β is 0.3 in the loss"),
    ],
)
def test_another_size_of_weights_is_found(times: float, expected: str, said: str) -> None:
    outcome = SCALED.outcome(run(0.0125 * times))
    assert severity(outcome) == expected
    assert said in outcome.findings[0].message


def test_a_mean_for_a_sum_is_a_matter_of_sides() -> None:
    facts = run(by_length=True)
    assert severity(SIDES.outcome(facts)) == "error"
    assert SCALED.outcome(facts).state == "not-run"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"same": True}, "error"),
        ({"shared": 2}, "error"),
        ({"moved": 9, "equal": 9}, "error"),
        ({"moved": 9, "owned": 9}, "error"),
        ({"moved": 3, "equal": 0}, "warning"),
        ({"moved": 9, "follows": ["SyncRefModelCallback"]}, "not-run"),
    ],
)
def test_a_reference_that_is_not_kept(change: Mapping[str, Any], expected: str) -> None:
    outcome = REFERENCE.outcome(run(reference={**KEPT, **change}))
    assert severity(outcome) == expected


@pytest.mark.parametrize("name", ["use_weighting", "ld_alpha"])
def test_what_is_not_known_is_not_run(name: str) -> None:
    facts = run(arguments={**ARGUMENTS, name: 0.5})
    assert SCALED.outcome(facts).state == "not-run"


@pytest.mark.parametrize(
    "path",
    [
        ("micro", "per_row"),
        ("micro", "per_row", "median"),
        ("micro", "per_row", "n"),
        ("micro", "shape"),
        ("micro", "tolerance"),
        ("preference", "arguments"),
        ("preference", "arguments", "beta"),
        ("preference", "arguments", "gradient_accumulation_steps"),
        ("preference", "changed"),
        ("preference", "overridden"),
        ("preference", "sides"),
    ],
    ids=".".join,
)
def test_weights_do_not_pass_without_a_fact(path: tuple[str, ...]) -> None:
    for change in (remove, null):
        assert SCALED.outcome(changed(run(), path, change)).state == "not-run", change


@pytest.mark.parametrize("check", [SCALED, SIDES, REFERENCE], ids=lambda one: str(one.name))
def test_nothing_passes_without_its_trainer_or_beyond_its_noise(check: WatchCheck) -> None:
    assert check.outcome(without_kind(run(), "preference")).state == "not-run"
    if check is not REFERENCE:
        assert check.outcome(blurred(run())).state == "not-run"


@pytest.mark.parametrize("name", ["same", "shared", "moved", "follows", "tensors", "ran"])
def test_a_reference_does_not_pass_without_a_fact(name: str) -> None:
    facts = changed(run(), ("preference", "reference", name), remove)
    assert REFERENCE.outcome(facts).state == "not-run"


def test_orpo_of_llamafactory_copies_each_answer() -> None:
    loss = PreferenceLoss("dpo", {"beta": 0.1, "loss_type": "orpo"})
    assert loss.is_free
    pair = loss.weights(0.0, AnswerBatch(2, 20), Answer(10, -40.0), Answer(10, -40.0))
    assert pair is not None
    assert pair[0] == pytest.approx(1 / 20 + 0.1 / 2 / 20 / (1 - 2.718281828**-4), rel=1e-6)
    assert pair[1] == pytest.approx(1 / 20 - pair[0])


def test_a_reference_that_never_ran_has_not_passed() -> None:
    facts = run(0.0125, {**ARGUMENTS, "loss_type": ["hinge"]}, {**KEPT, "ran": 0})
    assert REFERENCE.outcome(facts).state == "not-run"


def test_sides_that_the_data_set_does_not_show_have_not_passed() -> None:
    assert SIDES.outcome(run(known=False)).state == "not-run"
    assert severity(SCALED.outcome(run(0.025, known=False))) == "error"


def test_swapped_sides_are_found_by_the_data_set() -> None:
    outcome = SIDES.outcome(run(-0.0125))
    assert severity(outcome) == "error"
    assert "pushed the wrong way" in outcome.findings[0].message


@pytest.mark.parametrize(("times", "expected"), [(1.0, "passed"), (2.0, "error"), (3.0, "not-run")])
def test_of_a_loss_of_its_own_only_counts_are_found(times: float, expected: str) -> None:
    outcome = SCALED.outcome(run(0.0125 * times, overridden=("compute_loss",)))
    assert severity(outcome) == expected


def test_a_trainer_with_another_beta_than_its_arguments() -> None:
    outcome = SCALED.outcome(run(0.025, changed={"beta": 0.2}))
    assert severity(outcome) == "warning"
    assert "beta is 0.2, and its arguments have 0.1" in outcome.findings[0].message


def _spread(fact: dict[str, Any], name: str) -> None:
    """Give pairs margins."""
    sizes = [1.2, 1.5, 1.2, 1.5]
    fact[name] = [
        {**row, "median": row["median"] * size} for row, size in zip(fact[name], sizes, strict=True)
    ]


def test_a_margin_that_cannot_be_is_found() -> None:
    facts = changed(run(), ("micro", "per_row"), _spread)
    assert severity(SCALED.outcome(facts)) == "warning"
    other = run(reference={**KEPT, "equal": 0})
    assert SCALED.outcome(changed(other, ("micro", "per_row"), _spread)).state == "not-run"
