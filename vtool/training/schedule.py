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
"""The share of `optim.lr` in a step, by the share (0 to 1) of the steps after the warm-up that are
done. It begins with 1 and never rises.
"""


COMPARED = 64
"""Steps, from the first to the last, in which a live schedule is compared with a shape."""


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
    # The highest rate comes in the first step without a warm-up, and with one of a single step.
    possible = (0, 1) if top == 1 else (round(peak / rate(1)),)
    fits = [
        (warmup, name)
        for warmup in possible
        for name, shape in SCHEDULES.items()
        if _fits(shape, warmup, rate, peak, total)
    ]
    warmup = fits[0][0] if fits else possible[0]
    if not (total == 2 and rate(1) == rate(2)):  # then it may have a warm-up of one step, or none
        yield Observed("optim.warmup_steps", warmup, where)
    if total - warmup < 3:
        return
    step = warmup + 1 + (total - warmup) // 3
    unknown = f"a rate of {rate(step):.6g} in step {step}"
    yield Observed("optim.schedule", fits[0][1] if fits else unknown, where)


def _fits(
    shape: Callable[[float], float],
    warmup: int,
    rate: Callable[[int], float],
    peak: float,
    total: int,
) -> bool:
    """Return whether the rates after the warm-up have this shape, in at most `COMPARED` steps."""
    left = total - warmup
    steps = {warmup + 1 + place * (left - 1) // (COMPARED - 1) for place in range(COMPARED)}
    return all(
        same_value(shape((step - 1 - warmup) / left), rate(step) / peak) for step in steps if left
    )


def _top(rate: Callable[[int], float], total: int) -> int:
    """Return the first step with the highest rate."""
    return 1 + bisect_left(range(1, total), True, key=lambda step: rate(step + 1) <= rate(step))
