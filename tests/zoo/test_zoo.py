"""Each defect is caught by its check, and by no other; healthy code passes the same checks."""

from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.zoo.defect import Defect, Look
from tests.zoo.looks import EveryProof, Proved
from tests.zoo.zoo import DEFECTS, LOOKS, PROVED, ask, ask_with, figures, is_caught, page, said
from vtool.diagnostics import RULES

ROOT = Path(__file__).parents[2]


def named(look: Look) -> str:
    return next((f"as for {defect.name}" for defect in DEFECTS if defect.look == look), str(look))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.full
@pytest.mark.parametrize("look", [pytest.param(look, id=named(look)) for look in LOOKS])
def test_of_healthy_code_a_check_says_nothing(look: Look) -> None:
    found = ask(look)
    assert not found, said(found)


def first_of_its_check(defect: Defect) -> bool:
    return defect == next(one for one in DEFECTS if one.caught_by == defect.caught_by)


@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(one, id=one.name, marks=() if first_of_its_check(one) else (pytest.mark.full,))
        for one in DEFECTS
    ],
)
def test_a_defect_is_caught_by_the_check_that_names_it(defect: Defect) -> None:
    found = ask_with(defect)
    assert is_caught(defect, found), f"{defect.summary} Said: {said(found)}"


@pytest.mark.soak
@pytest.mark.parametrize(("defect", "look"), PROVED, ids=[defect.name for defect, _ in PROVED])
def test_among_all_proofs_the_one_that_is_for_a_defect_names_it(
    defect: Defect, look: Proved
) -> None:
    """Others may fail too: a mask that shows the future changes the loss and the gradient."""
    found = ask_with(replace(defect, look=EveryProof(look.rule, look.overrides)))
    assert any(is_caught(defect, [finding]) for finding in found), said(found)


def test_there_are_enough_of_them_each_of_its_own_and_of_a_rule_that_there_is() -> None:
    assert len(DEFECTS) >= 40
    names = Counter(defect.name for defect in DEFECTS)
    assert [name for name, count in names.items() if count > 1] == []
    assert {defect.caught_by for defect in DEFECTS} <= RULES.keys()
    assert [one.name for one in DEFECTS if "#" not in one.upstream] == [], "upstream: REPO#NUMBER"


def test_every_file_of_defects_is_an_area_of_the_zoo() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "zoo"}
    modules = [import_module(f"tests.zoo.{name}") for name in sorted(files - {"__main__"})]
    found = {defect for one in modules for defect in vars(one).get("DEFECTS", ())}
    missing = {defect.name for defect in found - set(DEFECTS)}
    assert missing == set(), "name their file in AREAS of tests/zoo/zoo.py"
    assert found == set(DEFECTS)


def test_a_defect_is_gone_when_it_has_been_looked_at() -> None:
    from vtool.data import encode
    from vtool.data.plan import Plan

    before = encode.label_chat, vars(Plan)["step"], vars(Plan)["steps_per_epoch"]
    for defect in DEFECTS:
        with defect.inject():
            pass
    assert before == (encode.label_chat, vars(Plan)["step"], vars(Plan)["steps_per_epoch"])


def test_a_check_that_says_something_else_has_not_caught_it() -> None:
    first, other = (
        DEFECTS[0],
        next(defect for defect in DEFECTS if defect.caught_by != DEFECTS[0].caught_by),
    )
    assert not is_caught(first, ())
    assert not is_caught(first, ask_with(other))


def test_the_page_is_that_of_these_defects() -> None:
    assert (ROOT / "docs/zoo.md").read_text() == page(), "renew docs/zoo.md: make goldens"


def test_the_readme_has_the_figures() -> None:
    text = (ROOT / "README.md").read_text()
    for line in figures(len(DEFECTS), 0):
        assert line in text, "renew README.md: make goldens"
