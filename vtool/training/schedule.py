"""The learning rate, a function of the step alone."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator

from vtool.config.readback import Observed, same_value
from vtool.config.schema import Optim


def learning_rate(settings: Optim, step: int, total: int) -> float:
    """The learning rate of a step, from 1 to `total`:

    linear warm-up to `optim.lr`, then the schedule.
    """
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    progress = (step - 1 - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    match settings.schedule:
        case "cosine":
            return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return settings.lr * (1 - progress)
        case "constant":
            return settings.lr


def highest(rate: Callable[[int], float], total: int) -> float:
    """The highest rate of a schedule that rises to it, and then no more."""
    return rate(_top(rate, total))


def read_back(rate: Callable[[int], float], total: int) -> Iterator[Observed]:
    """What a live schedule, a function of the step from 1 to `total`, has of the settings `optim`:
    told by its rates alone.

    A shape that cannot be told from another over so few steps is left out.
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
    place = warmup + 1 + left // 3
    gone = (place - 1 - warmup) / left
    shapes = {"constant": 1.0, "linear": 1 - gone, "cosine": 0.5 * (1 + math.cos(math.pi * gone))}
    told = next(
        (name for name, share in shapes.items() if same_value(share, rate(place) / peak)),
        f"a rate of {rate(place):.6g} in step {place}",
    )
    yield Observed("optim.schedule", told, where)


def _top(rate: Callable[[int], float], total: int) -> int:
    """The first step with the highest rate."""
    return 1 + bisect_left(range(1, total), True, key=lambda step: rate(step + 1) <= rate(step))
