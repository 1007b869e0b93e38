"""Facts that are damaged, of another format or of no model are not read, and say so."""

from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy, write
from tests.watch.test_conclusions import conclude, on, rules
from vtool.diagnostics import Findings
from vtool.watch.conclude import conclude_folder


@pytest.mark.parametrize("wrong", [{"model": "zero"}, {"step": [1]}, {"model": 1e999}, {"kind": 7}])
def test_lines_with_fields_of_another_type_are_damage(tmp_path: Path, wrong: Fact) -> None:
    facts = [{**fact, **wrong} if fact["kind"] == "alone" else fact for fact in healthy()]
    result = conclude(tmp_path, facts)
    assert (result.verdict, set(result.checks.values())) == ("not-run", {"not-run"})
    assert "lines of the facts are damaged (3)" in result.findings[0].message


def test_facts_without_what_belongs_to_them_are_not_read(tmp_path: Path) -> None:
    def torn(fact: Fact) -> None:
        if fact["kind"] == "micro":
            del fact["index"]

    result = conclude(tmp_path, changed(healthy(), torn))
    assert (result.verdict, set(result.checks.values())) == ("not-run", {"not-run"})
    assert "the facts are damaged" in result.findings[0].message


def test_a_folder_without_a_model_says_why(tmp_path: Path) -> None:
    facts = [fact for fact in healthy() if fact["kind"] == "process"]
    result = conclude(tmp_path / "none", facts)
    assert (result.verdict, rules(result)) == ("not-run", {"nothing-read": "note"})
    blind = {"kind": "blind", "why": "no head was found", "step": 0, "rank": 0, "model": None}
    assert "no head was found" in conclude(tmp_path / "blind", [*facts, blind]).findings[0].message


def test_facts_of_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Findings, match="format 9"):
        conclude(tmp_path, changed(healthy(), on("process", format=9)))
    with pytest.raises(Findings, match="there is no folder"):
        conclude_folder(tmp_path / "absent", "run", None)


def test_damaged_facts_end_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, healthy())
    file = folder / "rank0-10.jsonl"
    file.write_text(file.read_text()[:-20] + "\n{half")
    (result,) = conclude_folder(folder, "run", None)
    assert (result.verdict, result.checks["targets-not-next"]) == ("not-run", "not-run")
    facts = changed(healthy(), on("micro", per_row="x", measured_weight=3))
    result = conclude(tmp_path / "other", facts)
    assert "damaged" in str(result.details["token-weights-differ"]["reason"])


def test_facts_that_never_end_are_refused_by_their_size(tmp_path: Path) -> None:
    folder = write(tmp_path, healthy())
    with (folder / "rank0-10.jsonl").open("r+b") as file:
        file.truncate(40 * 2**30)
    with pytest.raises(Findings, match="at most 536,870,912 are read"):
        conclude_folder(folder, "run", None)
