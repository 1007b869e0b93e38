"""The learning rate, a function of the step alone."""

import math

from vtool.config.schema import Optim


def learning_rate(settings: Optim, step: int, total: int) -> float:
    """The learning rate of a step, from 1 to `total`: linear warm-up to `optim.lr`, then the schedule."""
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
