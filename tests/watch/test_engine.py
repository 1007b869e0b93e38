"""Changes to gradients between the last backward pass and the optimizer."""

from pathlib import Path

import pytest

from tests.watch.made import changed, healthy
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
