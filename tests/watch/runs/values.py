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


def row_of_zeros(token: int) -> Callable[[Any], None]:
    """A row that was never trained, as of an id that a checkpoint has in reserve."""

    def built(model: Any) -> None:
        model.get_input_embeddings().weight.data[token] = 0

    return built


def row_at_mean(token: int) -> Callable[[Any], None]:
    """The row of a new token, as transformers' resize_token_embeddings makes it."""

    def built(model: Any) -> None:
        import torch

        weight = model.get_input_embeddings().weight.data
        weight[token] = weight.mean(0) + 3e-5 * weight.std() * torch.randn_like(weight[token])

    return built


def one_tensor_times(factor: float) -> Callable[[Any, int, int], None]:
    """The gradient of the first layer's norm, as much larger than any other."""

    def before_step(model: Any, step: int, rank: int) -> None:
        model.model.layers[0].input_layernorm.weight.grad *= factor

    return before_step
