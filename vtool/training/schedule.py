"""The learning rate: a linear warm-up to `optim.lr`, then one of `SCHEDULES`.

To add one: a function in `SCHEDULES`, and its name in `Optim.schedule` of the schema.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator

from vtool.config.readback import Observed, same_value
from vtool.config.schema import Optim
from vtool.config.schema.training import WSD_DECAY

SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    # rounded, or the first step of the fall is a little below the others
    "wsd": lambda done: min(1.0, round((1 - done) / WSD_DECAY, 12)),
    "constant": lambda done: 1.0,
}
"""By the share (0 to 1) of the steps after the warm-up that are done, the height of the learning
rate: 1 is `optim.lr`, 0 is `optim.min_lr_ratio` of it. It begins with 1 and never rises.
"""


COMPARED = 64
"""Steps, from the first to the last, in which a live schedule is compared with a shape."""


def learning_rate(settings: Optim, step: int, total: int) -> float:
    """Return the learning rate of a step, from 1 to `total`: a function of the step alone."""
    warmup = settings.warmup(total)
    if step <= warmup:
        return settings.lr * step / warmup
    done = (step - 1 - warmup) / max(1, total - warmup)
    return settings.lr * _above(settings.min_lr_ratio, SCHEDULES[settings.schedule](done))


def highest(rate: Callable[[int], float], total: int) -> float:
    """Return the highest rate of a schedule that rises to it once."""
    return rate(_top(rate, total))


def observe_schedule(rate: Callable[[int], float], total: int) -> Iterator[Observed]:
    """Yield a live schedule's values of the settings `optim`, from its rates alone.

    A setting that has several values with which the rates would be the same is left out, as over
    few steps.

    Args:
        rate: the learning rate of a step, from 1 to `total`.
    """
    where, top, peak = "the schedule", _top(rate, total), highest(rate, total)
    yield Observed("optim.lr", peak, where)
    # The highest rate comes in the first step without a warm-up, and with one of a single step.
    possible = (0, 1) if top == 1 else (round(peak / rate(1)),)
    readings: dict[tuple[str, float | None], int] = {}  # with the shortest warm-up of each
    for warmup in (warmup for warmup in possible if warmup < total):
        for name, shape in SCHEDULES.items():
            heights = _heights(shape, warmup, total)
            floor = _floor(heights[total], rate(total) / peak)
            if 0 <= (floor or 0.0) < 1 and all(
                same_value(_above(floor or 0.0, height), rate(step) / peak)
                for step, height in heights.items()
            ):
                readings.setdefault((name, floor), warmup)
    if not readings:
        step = min(total, possible[0] + 1 + (total - possible[0]) // 3)
        readings[f"a rate of {rate(step):.6g} in step {step}", None] = possible[0]
    names, floors = zip(*readings, strict=True)
    for setting, values in (
        ("warmup_steps", set(readings.values())),
        ("schedule", set(names)),
        ("min_lr_ratio", set(floors)),
    ):
        if len(values) == 1 and None not in values:
            yield Observed(f"optim.{setting}", values.pop(), where, (total,))


def _heights(shape: Callable[[float], float], warmup: int, total: int) -> dict[int, float]:
    """Return a shape's heights after the warm-up by step: the last, and at most `COMPARED`."""
    left = total - warmup
    steps = {warmup + 1 + place * (left - 1) // (COMPARED - 1) for place in range(COMPARED)}
    return {step: shape((step - 1 - warmup) / left) for step in steps}


def _floor(height: float, rate: float) -> float | None:
    """Return the `optim.min_lr_ratio` with which this height of a shape is this rate.

    Returns:
        None, where it may be any: the shape has not fallen yet.
    """
    if height == 1:
        return None
    floor = (rate - height) / (1 - height)
    # what rounding makes of 0, also where a shape has hardly fallen
    return 0.0 if abs(floor) < 1e-13 else round(floor, 15)


def _above(floor: float, height: float) -> float:
    """Return the rate of a height, as a share of the highest rate."""
    return floor + (1 - floor) * height


def _top(rate: Callable[[int], float], total: int) -> int:
    """Return the first step with the highest rate."""
    return 1 + bisect_left(range(1, total), True, key=lambda step: rate(step + 1) <= rate(step))
