"""Padding that no config names, by the runs at the ends of rows."""

from pathlib import Path

import pytest

from tests.watch.made import Change, Fact, changed, healthy
from tests.watch.test_conclusions import conclude, on, rules

WIDTH, ROWS = 20, 2


def ends(*runs: int, token: int = 50, masked: bool = False, side: str = "ends") -> Change:
    """Let rows end in runs of a token, all of them learnt: a run for each micro-batch in turn."""
    seen = iter(runs * 12)

    def change(fact: Fact) -> None:
        if fact["kind"] != "micro":
            return
        run = next(seen)
        row = [[token, run, run, run, run - 1 if masked else 0]] if run > 2 else []
        fact["row_ends"] = {**fact["row_ends"], side: row, "within": {str(token): 0}}

    return change


def with_fields(**fields: object) -> Change:
    return on("micro", row_ends=lambda fact: {**fact["row_ends"], **fields})


@pytest.mark.parametrize("side", ["ends", "begins"])
@pytest.mark.parametrize("masked", [False, True])
def test_padding_that_no_config_names_is_a_warning(tmp_path: Path, side: str, masked: bool) -> None:
    result = conclude(tmp_path, changed(healthy(), ends(5, 9, side=side, masked=masked)))
    assert rules(result) == {"placeholder-learnt": "warning"}
    message = result.findings[0].message
    assert "6 of 12 rows" in message
    assert "up to 9 x token 50" in message
    assert "42 of these are learnt" in message
    assert ("attention_mask leaves out" in message) is masked


def test_an_end_token_is_named_as_one(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), ends(5, 9, token=2)))
    assert "token 2, an end token" in result.findings[0].message


def test_padding_that_the_config_names_stays_an_error(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), ends(5, 9, token=0)))
    assert rules(result) == {"placeholder-learnt": "error"}
    assert "42 x padding" in result.findings[0].message


HEALTHY: dict[str, list[Change]] = {
    "runs of one length": [ends(5), on("micro", shape=[1, WIDTH])],
    "a row in many": [ends(5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)],
    "the id is in rows over and over": [
        ends(5, 9),
        with_fields(within={"50": 1}),
    ],
    "other rows end before, and nothing is learnt there": [ends(5, 9), with_fields(to_the_end=1)],
    "short runs": [ends(3, 0)],
    "rows one by one, of any width": [
        ends(5, 9),
        on("micro", shape=lambda f: [1, 17 + 5 * f["index"] + 3 * f["step"]]),
        with_fields(rows=1, to_the_end=1),
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_texts_may_end_in_one_token_over_and_over(tmp_path: Path, name: str) -> None:
    facts = healthy()
    for change in HEALTHY[name]:
        facts = changed(facts, change)
    result = conclude(tmp_path, facts)
    assert result.findings == ()
    assert result.checks["placeholder-learnt"] == "passed"


def test_rows_one_by_one_of_one_width_are_padded(tmp_path: Path) -> None:
    facts = changed(healthy(), ends(5, 9))
    facts = changed(facts, on("micro", shape=[1, 32]))
    facts = changed(facts, with_fields(rows=1, to_the_end=1))
    assert rules(conclude(tmp_path, facts)) == {"placeholder-learnt": "warning"}


@pytest.mark.parametrize(("run", "found"), [(7, False), (8, True)])
def test_rows_of_one_length_that_are_filled_up_for_long_are_padded(
    tmp_path: Path, run: int, found: bool
) -> None:
    facts = changed(healthy(), ends(run))
    facts = changed(facts, on("micro", shape=[1, 32]))
    facts = changed(facts, with_fields(rows=1, to_the_end=1))
    assert bool(conclude(tmp_path, facts).findings) is found


def test_without_the_ends_of_rows_nothing_has_passed(tmp_path: Path) -> None:
    def torn(fact: Fact) -> None:
        fact.pop("row_ends", None)

    result = conclude(tmp_path / "torn", changed(healthy(), torn))
    assert result.checks["placeholder-learnt"] == "not-run"
    result = conclude(tmp_path / "none", changed(healthy(), on("micro", row_ends=None)))
    assert result.checks["placeholder-learnt"] == "not-run"


@pytest.mark.parametrize(("times", "found"), [(2, False), (3, True)])
def test_padding_that_ends_turns_too_is_learnt_from_its_third_on(
    tmp_path: Path, times: int, found: bool
) -> None:
    tokens: Fact = {"row": 0, "position": [], "target": [], "next": [], "weight": []}
    for at in range(times):
        tokens["position"].append(5 + at)
        tokens["target"].append(0)
        tokens["weight"].append(0.1)
    tokens |= {"next": tokens["target"], "misfit": [0.0] * times, "resolved": [1.0] * times}

    def change(fact: Fact) -> None:
        on("model", ends=[0, 2], specials={"pad": [0]})(fact)
        on("micro", per_token=[tokens])(fact)

    result = conclude(tmp_path, changed(healthy(), change))
    assert (rules(result) == {"placeholder-learnt": "error"}) is found, result.findings
    assert result.checks["placeholder-learnt"] == ("failed" if found else "passed")
