"""The learning rate: a linear warm-up to `optim.lr`, then one of `SCHEDULES`.

To add one: a function in `SCHEDULES`, and its name in `Optim.schedule` of the schema.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator

from vtool.config.readback import Observed, same_value
from vtool.config.schema import Optim

SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
}
"""The share of `optim.lr`, by the share (0 to 1) of the steps after the warm-up that are done."""


def learning_rate(settings: Optim, step: int, total: int) -> float:
    """Return the learning rate of a step, from 1 to `total`: a function of the step alone."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    done = (step - 1 - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    return settings.lr * SCHEDULES[settings.schedule](done)


def highest(rate: Callable[[int], float], total: int) -> float:
    """Return the highest rate of a schedule that rises to it once."""
    return rate(_top(rate, total))


def observe_schedule(rate: Callable[[int], float], total: int) -> Iterator[Observed]:
    """Yield what a live schedule has of the settings `optim`, from its rates alone.

    A shape that cannot be told from another over so few steps is left out.

    Args:
        rate: the learning rate of a step, from 1 to `total`.
    """
    where, top, peak = "the schedule", _top(rate, total), highest(rate, total)
    yield Observed("optim.lr", peak, where)
    # A warm-up of one step and none both begin with the highest rate, but the former has it twice,
    # unless it is constant.
    first, twice = rate(1), total > 1 and rate(2) == rate(1)
    warmup = (1 if twice and rate(total) < peak else 0) if top == 1 else round(peak / first)
    if not (twice and total == 2):
        yield Observed("optim.warmup_steps", warmup, where)
    left = total - warmup
    if left < 3:
        return
    step = warmup + 1 + left // 3
    share, done = rate(step) / peak, (step - 1 - warmup) / left
    unknown = f"a rate of {rate(step):.6g} in step {step}"
    name = next(
        (name for name, shape in SCHEDULES.items() if same_value(shape(done), share)), unknown
    )
    yield Observed("optim.schedule", name, where)


def _top(rate: Callable[[int], float], total: int) -> int:
    """Return the first step with the highest rate."""
    return 1 + bisect_left(range(1, total), True, key=lambda step: rate(step + 1) <= rate(step))
