"""Work done once too often, or taken back: steps, gradients, marks of texts."""

from pathlib import Path

import pytest

from tests.watch.made import Change, Fact, changed, healthy
from tests.watch.test_conclusions import conclude, on, rules


@pytest.mark.parametrize(
    ("passes", "found"), [(False, {"gradient-stepped-twice": "error"}), (True, {})]
)
def test_one_gradient_at_two_steps_is_found_where_nothing_was_computed_between(
    tmp_path: Path, passes: bool, found: dict[str, str]
) -> None:
    """With passes between, it may be one batch over and over at a rate of zero."""

    def change(fact: Fact) -> list[Fact] | None:
        if fact["step"] == 1 and fact["kind"] in ("rows", "micro", "alone", "placed"):
            return None if passes else []
        on("arrived", digest="the same", undone=None)(fact)
        return None

    assert rules(conclude(tmp_path, changed(healthy(), change))) == found


def written(**fields: object) -> Change:
    def change(fact: Fact) -> None:
        if fact["kind"] == "arrived" and fact["step"]:
            written_fact = {"tensors": 9, "of": 9, "share": 0.1, "rest": 1e-3, **fields}
            fact["undone"] = {"to": None, "tensors": 9, "back": [], "written": written_fact}

    return change


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {"step-not-the-optimizers": "warning"}),  # an average is written back
        ({"share": 1.0, "rest": 0.4}, {"step-not-the-optimizers": "note"}),  # a projection
        ({"share": 1.3}, {"step-not-the-optimizers": "note"}),
        ({"tensors": 2}, {}),
    ],
)
def test_weights_that_something_else_writes(
    tmp_path: Path, fields: dict[str, object], found: dict[str, str]
) -> None:
    assert rules(conclude(tmp_path, changed(healthy(), written(**fields)))) == found


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ((2,), False),
        ((2, 4), False),
        ((2, 3), True),  # the first write was that of a copy
        ((2, 3, 4), True),
    ],
)
def test_an_average_that_is_taken_now_and_then_is_neither_found_nor_passed(
    tmp_path: Path, steps: tuple[int, ...], found: bool
) -> None:
    def change(fact: Fact) -> list[Fact] | None:
        if fact["step"] in steps:
            written()(fact)
        if fact["kind"] != "arrived" or fact["step"] < 3:
            return None
        return [
            {**{key: fact[key] for key in ("step", "rank", "model", "undone")}, "kind": "followed"}
        ]

    shown = changed(healthy(steps=max(*steps, 2) + 1), change)
    kept = [f for f in shown if f["step"] < 3 or f["kind"] in ("followed", "rows", "ended")]
    result = conclude(tmp_path, kept)
    assert rules(result) == ({"step-not-the-optimizers": "warning"} if found else {})
    assert result.checks["step-not-the-optimizers"] == ("failed" if found else "not-run")


def test_tensors_that_are_put_back_before_each_step_are_found(tmp_path: Path) -> None:
    def change(fact: Fact) -> None:
        if fact["kind"] == "arrived" and fact["step"]:
            fact["undone"] = {"to": None, "tensors": 9, "back": ["b"], "written": None}

    result = conclude(tmp_path, changed(healthy(), change))
    assert rules(result) == {"parameter-stopped-moving": "warning"}


@pytest.mark.parametrize(("optimizer", "severity"), [("SGD", "note"), ("AdamW", "warning")])
def test_few_weights_that_plain_descent_does_not_move_are_a_note(
    tmp_path: Path, optimizer: str, severity: str
) -> None:
    def change(fact: Fact) -> None:
        on("model", optimizer=optimizer)(fact)
        on("drift", tensors={name: name for name in "abcde"})(fact)
        if fact["kind"] == "drift" and fact["step"]:
            fact.update(stuck=["a"], n_stuck=1)

    result = conclude(tmp_path, changed(healthy(), change))
    assert rules(result) == {"parameter-stopped-moving": severity}


def test_a_group_without_a_rate_among_others_is_a_note(tmp_path: Path) -> None:
    groups = [{"lr": 1e-3, "tensors": 5, "vectors": 1}, {"lr": 0.0, "tensors": 4, "vectors": 1}]
    result = conclude(tmp_path, changed(healthy(), on("stepped", groups=groups)))
    assert rules(result) == {"parameter-stopped-moving": "note"}
    assert "group 2 of the optimizer, of 4 tensors" in result.findings[0].message


@pytest.mark.parametrize(
    ("begins", "ends", "pads"), [([2], [2], [0]), ([1], [2], [1]), ([], [2], [0])]
)
def test_a_text_may_begin_with_two_ends_or_with_padding(
    tmp_path: Path, begins: list[int], ends: list[int], pads: list[int]
) -> None:
    """Packed texts of GPT-2 are parted by what begins them, too."""
    token = begins[0] if begins else 1

    def change(fact: Fact) -> None:
        on("rows", inputs=[[token, token, *range(30, 48)]] * 2)(fact)
        on("model", begins=begins, ends=ends, specials={"image": [90], "pad": pads})(fact)
        on("micro", names=["input_ids", "attention_mask"])(fact)

    assert rules(conclude(tmp_path, changed(healthy(), change))) == {}


@pytest.mark.parametrize(("judged", "verdict"), [(True, "not-run"), (False, "failed")])
def test_completions_that_are_cut_off_have_no_end_to_learn(
    tmp_path: Path, judged: bool, verdict: str
) -> None:
    def change(fact: Fact) -> None:
        on("micro", ends={"in_inputs": 2, "learnt": 0, "behind": 0})(fact)
        if judged and fact["kind"] == "micro":
            row = fact["per_row"][1]
            row |= {"least": -row["greatest"], "greatest": -row["least"], "sum": -row["sum"]}
            row |= {"positive": 0, "negative": row["n"]}

    result = conclude(tmp_path, changed(healthy(), change))
    assert result.checks["end-of-turn-not-learnt"] == verdict


def test_a_micro_batch_of_which_nothing_is_learnt_is_a_note(tmp_path: Path) -> None:
    def change(fact: Fact) -> None:
        if fact["kind"] == "micro" and fact["index"] == 0:
            fact["why"] = "no position has a gradient"

    result = conclude(tmp_path, changed(healthy(), change))
    assert rules(result)["rank-learns-nothing"] == "note"


@pytest.mark.parametrize(("last", "found"), [(0, {"step-not-the-optimizers": "warning"}), (1, {})])
def test_moments_that_are_thrown_away_before_each_step_are_found(
    tmp_path: Path, last: int, found: dict[str, str]
) -> None:
    def change(fact: Fact) -> None:
        for tensor in (fact.get("reference") or {}).values():
            tensor["age"] = last if fact["step"] == 2 else 0

    assert rules(conclude(tmp_path, changed(healthy(), change))) == found


@pytest.mark.parametrize(
    ("pixels", "idle", "found"),
    [
        ("rows", 2, {"parameter-without-gradient": "warning"}),
        ("rows", 1, {}),  # features of the last layer but one
        (None, 2, {}),  # rows of text
    ],
)
def test_images_that_no_gradient_comes_to_are_found(
    tmp_path: Path, pixels: str | None, idle: int, found: dict[str, str]
) -> None:
    def change(fact: Fact) -> None:
        on("arrived", of_images={"layers": 2, "idle": idle})(fact)
        on("rows", pixels=pixels)(fact)

    assert rules(conclude(tmp_path, changed(healthy(), change))) == found


@pytest.mark.parametrize(("steps", "found"), [(3, True), (1, False)])
def test_layers_without_a_gradient_are_found_in_several_steps(
    tmp_path: Path, steps: int, found: bool
) -> None:
    """In the first step adapters begin at zero, and layers may be dropped by chance."""
    facts = changed(healthy(steps=steps), on("arrived", idle=["layers.0"]))
    result = conclude(tmp_path, facts)
    assert rules(result) == ({"parameter-without-gradient": "warning"} if found else {})


@pytest.mark.parametrize(("epochs", "found"), [(2, "note"), (3, "warning")])
def test_rows_that_no_copies_explain_are_missing(tmp_path: Path, epochs: int, found: str) -> None:
    """Each of two rows as often: there are three; one twice as often: it may be there twice."""

    def change(fact: Fact) -> None:
        if fact["kind"] == "rows":
            number = fact["step"] * 4 + fact["micro"] * 2
            shown = "ab" * 6 if epochs == 3 else "aab" * 4
            fact["rows"] = list(shown[number : number + 2])
            if fact["data"]:
                fact["data"][0]["rows"] = 3 if epochs == 3 else 6

    result = conclude(tmp_path, changed(healthy(), change))
    assert rules(result)["rows-seen-unevenly"] == found
