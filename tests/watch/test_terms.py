"""Terms of a loss besides cross entropy, where rounding moves a little of one into the others."""

from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy, q
from tests.watch.test_conclusions import conclude, rules


def smoothed(entropy: float, apart: float) -> list[Fact]:
    def change(fact: Fact) -> None:
        if fact["kind"] == "micro":
            weight = q(fact["weight"][1] * (1 + apart * fact["index"]))
            fact |= {"odd": fact["solved"], "smooth": q(-0.1), "z": q(0.0), "entropy": q(entropy)}
            fact |= {"weight": weight, "measured_weight": weight, "plain_misfit": q(0.1)}

    return changed(healthy(), change)


@pytest.mark.parametrize("apart", [0.0, 1e-4])
def test_what_one_term_leaves_in_the_others_is_no_term_and_no_difference(
    tmp_path: Path, apart: float
) -> None:
    result = conclude(tmp_path, smoothed(3e-5, apart))
    assert rules(result) == {"loss-has-another-term": "note"}
    assert result.findings[0].message.endswith("weight: label smoothing +0.1")


def test_two_terms_are_both_said(tmp_path: Path) -> None:
    (finding,) = conclude(tmp_path, smoothed(1e-2, 0.0)).findings
    assert "label smoothing +0.1, an entropy term +0.01" in finding.message


def test_weights_that_differ_are_found_next_to_another_term(tmp_path: Path) -> None:
    assert rules(conclude(tmp_path, smoothed(0.0, 0.02)))["token-weights-differ"] == "warning"
