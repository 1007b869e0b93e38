"""The fill of packed forward passes at other token budgets, known from the rows' lengths alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vtool.data.packing import pack
from vtool.data.plan import Plan

MOST_STEPS = 64
MOST_ROWS = 20_000
"""Rows that are packed for one budget: packing them takes each rank 5 µs a row."""
_EIGHTHS = range(4, 17)


@dataclass(frozen=True, slots=True)
class BudgetFill:
    """The passes of the first steps of an epoch at one token budget."""

    budget: int
    tokens: int
    """Tokens of all rows of these steps."""
    passes: int
    """Passes of the rank with the most, over all steps: the others wait for it."""
    places: int
    """Tokens that all ranks could have taken in as many passes."""

    @property
    def fill(self) -> float:
        """The share of places that tokens fill, 0 to 1."""
        return self.tokens / self.places


def nearby_budgets(lengths: Sequence[int], asked: int) -> list[int]:
    """Return budgets between half and twice the one that is asked for, in steps of an eighth.

    A budget below the longest row is none.
    """
    longest = max(lengths)
    found = {-(-asked * eighths // 8) for eighths in _EIGHTHS}
    return sorted(budget for budget in found if budget >= longest)


def steps_to_pack(plan: Plan) -> int:
    """Return the number of steps that are packed; 0 where one of them has too many rows."""
    rows = min(plan.global_batch_size, plan.rows)
    return min(MOST_STEPS, plan.steps_per_epoch, MOST_ROWS // rows)


def fills(
    plan: Plan, lengths: Sequence[int], world: int, budgets: Sequence[int]
) -> Iterator[BudgetFill]:
    """Yield, for each budget, what the plan's first steps are packed into, as a run packs them."""
    steps = [
        [int(place) for place in plan.step(number)] for number in range(1, steps_to_pack(plan) + 1)
    ]
    tokens = sum(lengths[place] for step in steps for place in step)
    for budget in budgets if steps else ():
        passes = 0
        for step in steps:
            own = [lengths[place] for place in step]
            # a rank without rows takes part with a pass that does not count
            passes += max(len(pack(step, own, rank, world, budget)) for rank in range(world))
        yield BudgetFill(budget, tokens, passes, passes * world * budget)


def cheapest(found: Sequence[BudgetFill]) -> BudgetFill:
    """Return the budget that leaves the fewest places empty; of equal ones the smallest."""
    return min(found, key=lambda one: (one.places, one.budget))
