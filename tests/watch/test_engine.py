"""Changes to gradients between the last backward pass and the optimizer."""

from pathlib import Path

import pytest

from tests.watch.made import Change, Fact, changed, healthy
from tests.watch.test_conclusions import conclude, on, rules


@pytest.mark.parametrize(
    ("away", "found"), [(1e-7, None), (5e-4, "note"), (3e-3, "note"), (2e-2, "error")]
)
def test_what_a_communication_in_16_bits_leaves_is_a_note(
    tmp_path: Path, away: float, found: str | None
) -> None:
    gradient = [1.5 * (1 + 2 * away), -2.0, 0.5]
    result = conclude(tmp_path, changed(healthy(2), on("arrived", norm_gradient=gradient)))
    assert rules(result) == ({"gradient-of-other-rows": found} if found else {})


def test_on_one_rank_nothing_is_communicated(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), on("arrived", norm_gradient=[1.002, -2.0, 0.5])))
    assert rules(result) == {"gradient-of-other-rows": "error"}


def clipped_apart(factors: tuple[float, float], noise: float = 0.0) -> Change:
    """Let each rank's part of the gradient arrive with a factor of its own."""
    parts = [[1.0 + at, -2.0, 0.5 * at] for at in range(2)]
    wide = [
        [part[at % 3] * (1 + at * (1 + rank)) for at in range(12)]
        for rank, part in enumerate(parts)
    ]
    arrives = [
        sum(f * part[at] for f, part in zip(factors, wide, strict=True)) / 2 + noise * (at == 3)
        for at in range(12)
    ]
    return on(
        "arrived",
        norm_at=list(range(12)),
        norm_sum=lambda fact: wide[fact["rank"]],
        norm_gradient=arrives,
    )


def test_ranks_that_are_clipped_before_they_are_reduced_are_named(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(2), clipped_apart((0.04, 0.05))))
    assert rules(result) == {"gradient-of-other-rows": "error"}
    (finding,) = result.findings
    assert "0.04 on rank 0, 0.05 on rank 1" in finding.message
    assert "clip them then" in str(finding.help)


def test_a_rank_whose_gradients_are_not_in_the_sum_is_named(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(2), clipped_apart((1.0, 0.0))))
    assert "those of a rank are not in it" in result.findings[0].message


def test_no_factor_of_a_rank_explains_another_gradient(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(2), clipped_apart((0.04, 0.05), noise=1.0)))
    assert "away from any multiple" in result.findings[0].message


@pytest.mark.parametrize(("finite", "found"), [(True, "error"), (False, "warning")])
def test_passes_that_are_thrown_away_as_they_are_not_finite_are_a_warning(
    tmp_path: Path, finite: bool, found: str
) -> None:
    why = "passes whose gradients were thrown away: 2"
    why += "" if finite else ", each time with some that are not finite"

    def more(fact: Fact) -> list[Fact] | None:
        if fact["kind"] != "rows":
            return None
        lost = {"kind": "skipped", "what": "learnt", "why": why}
        return [fact, {**fact, "data": None}, {**fact, "inputs": None, **lost}]

    result = conclude(tmp_path, changed(healthy(), more))
    assert rules(result)["gradient-of-other-rows"] == found
