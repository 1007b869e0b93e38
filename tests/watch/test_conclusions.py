"""Conclusions follow from facts: each mistake has its rule, and what was not seen is no pass."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watch import planted_facts
from tests.watch.made import (
    LENGTHS,
    LOOKS,
    Change,
    Fact,
    U,
    changed,
    cut_layers,
    healthy,
    micro,
    on,
    q,
    write,
)
from vtool.diagnostics.result import Result
from vtool.watch.conclude import conclude_folder
from vtool.watch.conclusions import CHECKS

PER_MICRO = {index: sum(lengths) for index, lengths in enumerate(LENGTHS)}


def conclude(folder: Path, facts: list[Fact]) -> Result:
    (result,) = conclude_folder(write(folder, facts), "run", None)
    return result


def rules(result: Result) -> dict[str, str]:
    return {finding.rule: str(finding.severity) for finding in result.findings}


def weigh(weight: Callable[[Fact], float]) -> Change:
    def change(fact: Fact) -> list[Fact] | None:
        if fact["kind"] != "micro":
            return None
        new = micro(fact["index"], LENGTHS[fact["index"]], weight(fact))
        return [{**fact, **new}]

    return change


def weigh_rows(weight: Callable[[int, int], float]) -> Change:
    """Give each row of n tokens the weight `weight(row, n)`."""

    def change(fact: Fact) -> None:
        if fact["kind"] != "micro":
            return
        for row in fact["per_row"]:
            value = weight(row["row"], row["n"])
            row |= {"sum": value * row["n"], "least": value, "greatest": value}
            row |= {"positive": row["n"] * (value > 0), "negative": row["n"] * (value < 0)}
        values = sorted(row["least"] for row in fact["per_row"])
        fact["measured_weight"] = fact["weight"] = [values[0], values[0], values[-1], values[-1]]
        fact["sum"] = sum(row["sum"] for row in fact["per_row"])
        own = {row["row"]: row["n"] for row in fact["per_row"] if row["least"] != values[0]}
        fact["uneven"] = sum(own.values())
        fact["by_target"] = {"7": [fact["measured"], values[0], 32 * U, len(own)]}

    return change


def _halved(layers: Fact) -> Fact:
    tensor = layers["layers.0"]
    return {**tensor, "arrived": [x / 2 for x in tensor["left"]]}


JUDGED = {"preference-scaled", "preference-sides", "preference-reference"}
PLANTED: dict[str, tuple[int, Change, str, str]] = {
    "shifted twice": (
        1,
        on("micro", not_next=18, is_plus={"0": 0, "2": 18, "3": 0}),
        "targets-not-next",
        "error",
    ),
    "an image's tokens": (
        1,
        on("micro", specials={"90": {"in_inputs": 4, "learnt": 4}}),
        "placeholder-learnt",
        "error",
    ),
    "a mask the wrong way round": (
        1,
        on("micro", left_out=lambda f: f["measured"]),
        "masked-tokens-learnt",
        "error",
    ),
    "decay on norms": (
        1,
        on("stepped", groups=[{"lr": 1e-3, "weight_decay": 0.1, "tensors": 9, "vectors": 4}]),
        "decay-on-norms",
        "note",
    ),
    "a head that is not tied": (
        1,
        on("model", tie_meant=True),
        "head-not-tied",
        "warning",
    ),
    "texts that begin twice": (
        1,
        on("rows", inputs=[[1, 1, *range(30, 48)]] * 2),
        "special-token-doubled",
        "warning",
    ),
    "a rank of which nothing is learnt": (
        2,
        lambda f: on("micro", why="no position has a gradient")(f) if f["rank"] else None,
        "rank-learns-nothing",
        "warning",
    ),
    "a mask that is not causal": (
        1,
        lambda f: (
            [f, {**f, "kind": "ahead", "tokens": 9, "seen": 9}] if f["kind"] == "alone" else None
        ),
        "targets-seen",
        "error",
    ),
    "a gradient used by two optimizers": (
        1,
        on("stepped", others={"AdamW": 9}),
        "gradient-stepped-twice",
        "error",
    ),
    "no end token": (
        1,
        on("micro", ends={"in_inputs": 2, "learnt": 0, "behind": 2}),
        "end-of-turn-not-learnt",
        "warning",
    ),
    "label smoothing": (
        1,
        on("micro", odd=lambda f: f["solved"], smooth=q(-0.1), z=q(0.0), entropy=q(0.0)),
        "loss-has-another-term",
        "note",
    ),
    "mean of means": (
        1,
        weigh(lambda f: 1 / PER_MICRO[f["index"]] / len(LENGTHS)),
        "token-weights-differ",
        "error",
    ),
    "mean of means on ranks": (
        2,
        weigh(lambda f: 1 / PER_MICRO[f["index"]] / len(LENGTHS)),
        "token-weights-differ",
        "error",
    ),
    "a mean of each row": (
        1,
        weigh_rows(lambda row, n: 1 / n / 4),
        "token-weights-differ",
        "note",
    ),
    "not divided by accumulation": (1, weigh(lambda f: 2 / 36), "gradient-scaled", "error"),
    "summed over ranks": (
        2,
        on("arrived", norm_gradient=[3.0, -4.0, 1.0]),
        "gradient-scaled",
        "error",
    ),
    "the loss negated": (
        2,
        weigh_rows(lambda row, n: -2 / 72),
        "tokens-unlearnt",
        "error",
    ),
    "a preference": (
        1,
        weigh_rows(lambda row, n: 0.01 if row == 0 else -0.01),
        "rows-judged",
        "note",
    ),
    "a rank's own gradient": (
        2,
        on("arrived", digest=lambda f: f"{f['rank']}", tensors=lambda f: {"a": f["rank"]}),
        "gradients-differ-between-ranks",
        "error",
    ),
    "gradients of before": (
        1,
        on("arrived", norm_gradient=[1.0, 3.0, 0.5], gradients_before={"a": 1.0}),
        "gradient-of-other-rows",
        "error",
    ),
    "not a number": (
        1,
        on("arrived", nonfinite=["a"], n_nonfinite=1),
        "gradient-not-finite",
        "error",
    ),
    "weights moved by a hook": (
        1,
        on("stepped", reference={"a": {"off": 8e4, "moved": 1.0, "elements": 8}}),
        "step-not-the-optimizers",
        "error",
    ),
    "gradients clipped by value": (
        1,
        on("arrived", layers=cut_layers),
        "gradients-clipped-by-value",
        "warning",
    ),
    "evaluation mode": (1, on("micro", dropout="off"), "dropout-off", "warning"),
    "gradients of a layer halved": (
        2,
        on("arrived", layers=lambda f: {**f["layers"], "layers.0": _halved(f["layers"])}),
        "layers-scaled-apart",
        "warning",
    ),
    "bfloat16 weights": (
        1,
        on("stepped", reference={"a": {"off": 0.5, "moved": 0.45, "dtype": "torch.bfloat16"}}),
        "updates-lost-in-rounding",
        "warning",
    ),
    "a part in no group": (
        1,
        on("model", in_no_group=["a"], n_in_no_group=1),
        "parameter-in-no-group",
        "error",
    ),
    "a part without gradient": (
        1,
        on("arrived", no_gradient=["a"], n_no_gradient=1),
        "parameter-without-gradient",
        "note",
    ),
    **planted_facts.PLANTED,
    "replicas drift": (2, on("drift", digest=lambda f: f"{f['rank']}"), "replicas-drift", "error"),
    "a rate of nought": (
        1,
        on("drift", stuck=["a"], n_stuck=1),
        "parameter-stopped-moving",
        "warning",
    ),
    "rows see each other": (
        1,
        on("alone", documents=lambda f: [{**d, "apart": 0.9} for d in f["documents"]]),
        "row-changes-in-batch",
        "error",
    ),
    "positions of text": (
        1,
        on("alone", documents=lambda f: [{**d, "positions_wrong": 9} for d in f["documents"]]),
        "row-positions-differ",
        "error",
    ),
    "images at positions of text": (
        1,
        on(
            "placed",
            documents=lambda f: [{**d, "wrong": 9, "as_text": True} for d in f["documents"]],
        ),
        "image-positions-differ",
        "error",
    ),
    "the first rows again and again": (
        1,
        on("rows", rows=lambda f: [f"{f['micro']}-{row}" for row in range(2)]),
        "rows-seen-unevenly",
        "note",
    ),
    "the same rows on each rank": (
        2,
        on("rows", rows=lambda f: [r.partition("-")[2] for r in f["rows"]]),
        "ranks-see-same-rows",
        "error",
    ),
    "two epochs in one order": (
        1,
        on(
            "rows",
            rows=lambda f: [f"{(12 * f['step'] + 6 * f['micro'] + row) % 9}" for row in range(6)],
            data=[{"loader": "DataLoader", "rows": 9, "batch": 6, "shuffled": True}],
        ),
        "epochs-in-one-order",
        "warning",
    ),
}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_nothing_is_found_in_a_healthy_run(tmp_path: Path, world: int) -> None:
    result = conclude(tmp_path, healthy(world))
    assert (result.verdict, result.findings) == ("clean", ())
    missing = {name for name, state in result.checks.items() if state == "not-run"}
    tokenizer = {"prompt-learnt", "answer-partly-learnt", "answers-left-out"}
    one_rank = {"gradients-differ-between-ranks", "replicas-drift", "ranks-see-same-rows"}
    longer = {"epochs-in-one-order", "same-batch-every-step", *JUDGED}
    assert missing == tokenizer | (one_rank if world == 1 else set()) | longer


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_is_found_by_its_own_rule(tmp_path: Path, name: str) -> None:
    world, change, rule, severity = PLANTED[name]
    result = conclude(tmp_path, changed(healthy(world), change))
    found = rules(result)
    assert found.get(rule) == severity, result.findings
    # that weights differ also makes a rank's rows weigh more: nothing else may be reported of it
    assert [name for name, how in found.items() if how == "error"] == [rule] * (severity == "error")
    assert result.checks[rule] == ("passed" if severity == "note" else "failed")


def _owns_nothing(fact: Fact) -> None:
    if fact["kind"] == "model":
        fact |= {"in_no_group": ["a"], "n_in_no_group": fact["trainable"]}


@pytest.mark.parametrize(
    ("drift", "state"),
    [
        ({"digest": lambda f: f"{f['step']}"}, "not-run"),  # ZeRO: weights move all the same
        ({"digest": "as before"}, "failed"),
        ({"digest": "as before", "sharded": True}, "not-run"),  # what moves is elsewhere
    ],
)
def test_an_optimizer_with_copies_is_distinguished_from_one_without_the_weights(
    tmp_path: Path, drift: Fact, state: str
) -> None:
    facts = changed(changed(healthy(), _owns_nothing), on("drift", **drift))
    result = conclude(tmp_path, facts)
    assert result.checks["parameter-in-no-group"] == state, result.findings
    assert result.checks["parameter-stopped-moving"] == "not-run"


def test_gradients_that_no_parameter_has_are_not_looked_at(tmp_path: Path) -> None:
    def kept_apart(fact: Fact) -> None:
        if fact["kind"] == "arrived":
            fact |= {"no_gradient": ["a"], "n_no_gradient": 2, "norm_gradient": None}
        if fact["kind"] == "model":
            fact["trainable"] = 2

    result = conclude(tmp_path, changed(healthy(2), kept_apart))
    assert result.findings == ()
    for name in (
        "gradients-differ-between-ranks",
        "gradient-not-finite",
        "parameter-without-gradient",
        "gradient-of-other-rows",
    ):
        assert result.checks[name] == "not-run"


def test_every_check_has_a_mistake_that_it_finds() -> None:
    tokenizer = {"prompt-learnt", "answer-partly-learnt", "answers-left-out"}
    found = {rule for _, _, rule, _ in PLANTED.values()} | {"loss-not-read"}
    assert {check.name for check in CHECKS} == found | tokenizer | JUDGED


def test_the_message_of_a_mean_of_means_has_the_ratio_and_what_avoids_it(tmp_path: Path) -> None:
    _, change, rule, _ = PLANTED["mean of means"]
    result = conclude(tmp_path, changed(healthy(), change))
    (finding,) = (one for one in result.findings if one.rule == rule)
    assert "2.0000 times" in finding.message
    assert "its own micro-batch" in finding.message
    assert "gradient_accumulation_steps=1" in str(finding.help)


def test_rows_of_one_length_are_no_mean_over_rows(tmp_path: Path) -> None:
    """Rows of 6 tokens in one micro-batch and of 12 in the other: it is a mean of means."""
    facts = changed(healthy(), PLANTED["mean of means"][1])
    for fact in facts:
        for row in fact.get("per_row") or ():
            row["n"] = row["solved"] = 6 * (fact["index"] + 1)
            row["sum"] = row["least"] * row["n"]
    result = conclude(tmp_path, facts)
    assert rules(result) == {"token-weights-differ": "error"}


def test_a_divisor_of_each_rank_differs_from_one_of_each_micro_batch(tmp_path: Path) -> None:
    facts = changed(healthy(2), weigh(lambda f: (2 if f["rank"] else 1) / 36))
    for fact in facts:
        if fact["kind"] == "micro" and fact["rank"] == 0:
            fact["supervised"] = fact["solved"] = fact["measured"] = fact["read"] = (
                2 * fact["supervised"]
            )
    result = conclude(tmp_path, facts)
    (finding,) = (one for one in result.findings if one.rule == "token-weights-differ")
    assert finding.severity == "error"
    assert "its own rank" in finding.message


def test_weights_that_rounding_explains_are_equal(tmp_path: Path) -> None:
    """In 16 bits single weights are 3 % off, and medians of micro-batches 0.5 %."""
    draw = {0: 1.004, 1: 0.996}
    facts = changed(healthy(), weigh(lambda f: draw[f["index"]] / 36))
    coarse = changed(facts, on("micro", u=2.0**-9, resolved=q(0.5)))
    assert conclude(tmp_path / "coarse", coarse).findings == ()
    fine = conclude(tmp_path / "fine", facts)
    assert rules(fine).get("token-weights-differ") == "warning"


def test_scaled_losses_that_are_unscaled_on_the_way_are_one(tmp_path: Path) -> None:
    """A GradScaler multiplies by 65536 and divides again; a sum is divided by N afterwards."""
    facts = changed(healthy(), weigh(lambda f: 65536 / 36))
    facts = changed(facts, on("arrived", norm_gradient=[1 / 65536, -2 / 65536, 0.5 / 65536]))
    assert conclude(tmp_path, facts).findings == ()


def test_clipping_is_no_scale(tmp_path: Path) -> None:
    facts = changed(
        healthy(),
        on(
            "arrived",
            norm_gradient=lambda f: [v / (3.1 + f["step"]) for v in (1.0, -2.0, 0.5)],
        ),
    )
    assert conclude(tmp_path, facts).findings == ()


def test_a_loss_that_is_not_read_leaves_its_checks_unrun(tmp_path: Path) -> None:
    facts = changed(healthy(), on("micro", read=0, odd=18, misfit=q(0.4), plain_misfit=q(0.4)))
    result = conclude(tmp_path, facts)
    assert result.verdict == "not-run"
    assert rules(result) == {"loss-not-read": "note", "nothing-read": "note"}
    assert "passed" not in result.checks.values()


@pytest.mark.parametrize("kind", LOOKS)
def test_a_look_without_facts_is_no_pass(tmp_path: Path, kind: str) -> None:
    result = conclude(tmp_path, changed(healthy(2), lambda f: [] if f["kind"] == kind else None))
    look = {"micro": "learnt", "rows": "ledger", "arrived": None}.get(kind, kind)
    assert result.findings == () or rules(result) == {"nothing-read": "note"}
    for check in CHECKS:
        if check.look == look and check.name not in ("ranks-see-same-rows",):
            assert result.checks[check.name] == "not-run", check.name


def test_an_error_of_the_watch_leaves_nothing_passed(tmp_path: Path) -> None:
    wrong = {"kind": "error", "where": "solve", "error": "boom", "off": True}
    facts = [*healthy(), {**wrong, "step": 1, "rank": 0, "model": 0}]
    result = conclude(tmp_path, facts)
    assert "passed" not in result.checks.values()
    assert "boom" in str(result.details["targets-not-next"]["reason"])


def test_weights_stuck_by_rounding_are_no_finding_of_their_own(tmp_path: Path) -> None:
    def change(fact: Fact) -> None:
        on("drift", stuck=["a"], n_stuck=1)(fact)
        on("stepped", reference={"a": {"off": 0.5, "moved": 0.4, "dtype": "torch.bfloat16"}})(fact)

    result = conclude(tmp_path, changed(healthy(), change))
    assert rules(result) == {"updates-lost-in-rounding": "warning"}
    assert result.checks["parameter-stopped-moving"] == "not-run"


def test_of_gradients_that_differ_on_ranks_no_scale_is_taken(tmp_path: Path) -> None:
    def change(fact: Fact) -> None:
        mine = [float(2 * (1 + fact["rank"])), -4.0, 1.0]
        on("arrived", digest=f"{fact['rank']}", norm_gradient=mine)(fact)

    result = conclude(tmp_path, changed(healthy(2), change))
    assert rules(result) == {"gradients-differ-between-ranks": "error"}


def test_what_one_look_lacks_does_not_unmake_another(tmp_path: Path) -> None:
    wrong = {"kind": "error", "where": "alone", "error": "boom", "off": False}
    result = conclude(tmp_path, [*healthy(), {**wrong, "step": 1, "rank": 0, "model": 0}])
    assert result.checks["row-changes-in-batch"] == "not-run"
    assert result.checks["targets-not-next"] == "passed"


def test_a_mask_without_some_tokens_may_be_meant(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), on("micro", left_out=2)))
    assert rules(result) == {"masked-tokens-learnt": "note"}


def test_two_models_are_two_results(tmp_path: Path) -> None:
    second = [{**fact, "model": 1} for fact in healthy() if fact["kind"] != "process"]
    results = conclude_folder(write(tmp_path, [*healthy(), *second]), "run", None)
    assert [result.subject for result in results] == [
        "run: TinyForCausalLM 0",
        "run: TinyForCausalLM 1",
    ]
