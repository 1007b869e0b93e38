"""Rows that are pushed up and down, and ranks that decide which."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules, weigh_rows


def facts(sign: Callable[[int, int], int], world: int = 2, steps: int = 3) -> list[Fact]:
    """Return facts in which `sign(rank, row)` is that of a row's weight."""

    def change(fact: Fact) -> None:
        weigh_rows(lambda row, n: sign(int(fact["rank"]), row) / 36)(fact)

    return [fact for fact in changed(healthy(world), change) if fact.get("step", 0) < steps]


def test_a_rank_whose_loss_is_negated_is_named(tmp_path: Path) -> None:
    result = conclude(tmp_path, facts(lambda rank, row: -1 if rank else 1))
    (finding,) = [one for one in result.findings if one.rule == "rows-judged"]
    assert finding.severity == "warning"
    assert "of rank 1 every row has the other one" in finding.message


@pytest.mark.parametrize(
    ("sign", "world", "steps"),
    [
        (lambda rank, row: -1 if row else 1, 2, 3),
        (lambda rank, row: -1 if rank and row else 1, 2, 3),
        (lambda rank, row: -1 if rank else 1, 2, 1),  # four rows a rank: it may be chance
        (lambda rank, row: -1 if row else 1, 1, 3),
    ],
    ids=["pairs", "one rank has both", "few rows", "one rank"],
)
def test_a_preference_is_a_note(
    tmp_path: Path, sign: Callable[[int, int], int], world: int, steps: int
) -> None:
    assert rules(conclude(tmp_path, facts(sign, world, steps)))["rows-judged"] == "note"
