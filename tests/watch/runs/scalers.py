"""Losses that a GradScaler multiplies, for gradients that it divides again."""

from collections.abc import Callable
from typing import Any

from tests.watch.runs.loop import cross_entropy


def _scaler(model: Any) -> Any:
    import torch

    made = model.__dict__
    return made.setdefault("_scaler", torch.amp.GradScaler("cpu", init_scale=2.0**12))


def scaled(times: int = 1) -> Callable[[Any, Any, Any], Any]:
    """Return a loss that a scaler multiplies, or does so once more."""

    def loss(logits: Any, labels: Any, model: Any) -> Any:
        found = cross_entropy(logits, labels, model)
        for _ in range(times):
            found = _scaler(model).scale(found)
        return found

    return loss


def steps(model: Any, optimizer: Any) -> None:
    """Let the scaler divide gradients, and make the steps."""
    inner = optimizer.step

    def step() -> None:
        optimizer.step = inner
        _scaler(model).step(optimizer)
        _scaler(model).update()
        optimizer.step = step

    optimizer.step = step


def divide(model: Any, step: int, rank: int) -> None:
    """Divide gradients by hand."""
    for parameter in model.parameters():
        parameter.grad.div_(_scaler(model).get_scale())


def clip_unscaled(clip: float) -> Callable[[Any, int, int], None]:
    """Return a hook that unscales gradients first, and then clips them."""

    def before_step(model: Any, step: int, rank: int) -> None:
        import torch

        _scaler(model).unscale_(model._optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)

    return before_step


def steps_and_clips(model: Any, optimizer: Any) -> None:
    model.__dict__["_optimizer"] = optimizer
    steps(model, optimizer)
