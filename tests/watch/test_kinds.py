"""One micro-batch of each kind that was seen must have been tested."""

from pathlib import Path

import pytest

from tests.watch.made import Change, Fact, changed, healthy
from tests.watch.test_conclusions import conclude, on, rules

CHECKS = ("targets-seen", "row-changes-in-batch", "row-positions-differ")


def of_second(kind: str | None, *, tested: bool) -> Change:
    """Let the second micro-batch of each step be of a kind, of which one is tested or none."""

    def change(fact: Fact) -> list[Fact] | None:
        if fact["kind"] == "micro" and fact["index"] == 1:
            fact["batch"] = kind
        if tested and fact["kind"] in ("alone", "causal") and fact["step"] == 1:
            return [fact, {**fact, "batch": kind, "micro": 1}]
        return None

    return change


@pytest.mark.parametrize("kind", ["padded", "packed", "packed, padded", "other"])
@pytest.mark.parametrize("tested", [False, True])
def test_a_kind_of_which_none_was_tested_has_not_passed(
    tmp_path: Path, kind: str, tested: bool
) -> None:
    result = conclude(tmp_path, changed(healthy(), of_second(kind, tested=tested)))
    assert result.findings == ()
    for name in CHECKS:
        assert result.checks[name] == ("passed" if tested else "not-run")
        reason = str(result.details[name].get("reason"))
        assert tested or "micro-batches" in reason
        assert tested or kind == "other" or reason.startswith(f"{kind} micro-batches were seen")


def test_what_nobody_knows_the_kind_of_has_not_passed(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), of_second(None, tested=False)))
    assert {result.checks[name] for name in CHECKS} == {"not-run"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dropout": True}, "dropout was on"),
        ({"repeats": False}, "computed once more, they are others"),
        ({"apart": 2e-7}, "less than is certain"),
    ],
)
def test_what_a_test_could_not_decide_has_not_passed(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    result = conclude(tmp_path, changed(healthy(), on("causal", **fields)))
    assert result.findings == ()
    assert result.checks["targets-seen"] == "not-run"
    assert reason in str(result.details["targets-seen"]["reason"])


def test_what_moves_for_certain_is_an_error_and_explains_rows_alone(tmp_path: Path) -> None:
    facts = changed(healthy(), on("causal", apart=0.2, batch="plain"))
    apart = on("alone", documents=lambda f: [{**each, "apart": 0.3} for each in f["documents"]])
    result = conclude(tmp_path, changed(facts, apart))
    assert rules(result) == {"targets-seen": "error"}
    assert "of a plain micro-batch" in result.findings[0].message
    assert result.checks["row-changes-in-batch"] == "not-run"


@pytest.mark.parametrize("field", ["apart", "certain", "dropout", "repeats", "batch", "tolerance"])
def test_a_missing_field_is_no_pass(tmp_path: Path, field: str) -> None:
    def torn(fact: Fact) -> None:
        if fact["kind"] == "causal":
            del fact[field]

    assert conclude(tmp_path, changed(healthy(), torn)).checks["targets-seen"] == "not-run"


@pytest.mark.parametrize("field", ["apart", "positions_wrong"])
def test_a_missing_field_of_a_document_is_no_pass(tmp_path: Path, field: str) -> None:
    def torn(fact: Fact) -> None:
        for each in fact.get("documents") or ():
            each.pop(field, None)

    rule = {"apart": "row-changes-in-batch", "positions_wrong": "row-positions-differ"}[field]
    assert conclude(tmp_path, changed(healthy(), torn)).checks[rule] == "not-run"
