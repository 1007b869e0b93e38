"""Each proof is one file, and is in the list of proofs, the rules, the zoo and the docs."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.verification.proofs_page import PAGE, renew
from tests.zoo.looks import Proved
from tests.zoo.zoo import DEFECTS
from vtool.diagnostics import RULES
from vtool.verification import proofs
from vtool.verification.proofs import FAST, PROOF_NAMES, PROOFS, PROOFS_ON_RANKS
from vtool.verification.proofs.proof import Proof

FOLDER = Path(proofs.__file__).parent
SUPPORT = {"__init__", "proof", "report"}


def test_every_file_of_a_proof_is_registered_once() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - SUPPORT
    names = [name.replace("-", "_") for name in PROOF_NAMES]
    assert files - set(names) == set(), "add them to PROOFS of verification/proofs/__init__.py"
    assert set(names) - files == set(), "a file of a proof is named after its rule"
    assert len(names) == len(files), "a proof is listed twice"


@pytest.mark.parametrize("proof", PROOFS, ids=PROOF_NAMES)
def test_a_proof_is_in_the_file_that_is_named_after_its_rule(proof: Proof) -> None:
    module = import_module(f"vtool.verification.proofs.{proof.name.replace('-', '_')}")
    assert module.PROOF is proof
    assert proof.compute.__module__ == module.__name__
    assert proof.name in {*FAST, *PROOFS_ON_RANKS}, "it is made in one process, or in two"


@pytest.mark.parametrize("proof", PROOFS, ids=PROOF_NAMES)
def test_the_rule_of_a_proof_is_in_the_table_of_rules(proof: Proof) -> None:
    assert RULES[proof.name] is proof.rule


@pytest.mark.parametrize("proof", PROOFS, ids=PROOF_NAMES)
def test_a_proof_that_passed_is_printed_as_what_holds(proof: Proof) -> None:
    """The name and summary say what is wrong, and would read as if that had passed."""
    assert proof.rule.holds.endswith("."), "give the rule a `holds`: a sentence"
    assert proof.rule.claim("passed") == proof.rule.claim("not-run") == proof.rule.holds
    assert proof.rule.claim("failed") == proof.rule.summary


@pytest.mark.parametrize("proof", PROOFS, ids=PROOF_NAMES)
def test_a_proof_catches_the_case_in_the_zoo_that_it_is_for(proof: Proof) -> None:
    cases = {
        defect.upstream
        for defect in DEFECTS
        if defect.caught_by == proof.name and isinstance(defect.look, Proved)
    }
    assert proof.upstream in cases, (
        f"give tests/zoo/ a Defect of {proof.upstream} whose look is Proved({proof.name!r})"
    )


def test_the_zoo_asks_for_no_proof_that_is_not_registered() -> None:
    assert {defect.look.rule for defect in DEFECTS if isinstance(defect.look, Proved)} == {
        *PROOF_NAMES
    }


def test_the_page_has_the_proofs_of_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renew(page), "renew docs/verify.md: make goldens"
