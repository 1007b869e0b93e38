"""Gradients that lose their sizes, and a model that stays in evaluation mode."""

from collections.abc import Callable
from typing import Any


def sign_alone(model: Any, step: int, rank: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.sign_()


def clip_values(limit: float) -> Callable[[Any, int, int], None]:
    def clip(model: Any, step: int, rank: int) -> None:
        import torch

        torch.nn.utils.clip_grad_value_(model.parameters(), limit)

    return clip


def eval_after(first: int) -> Callable[[Any, Any, int], None]:
    """An evaluation after a step leaves the model in evaluation mode."""

    def after(model: Any, optimizer: Any, step: int) -> None:
        if step >= first:
            model.eval()

    return after
