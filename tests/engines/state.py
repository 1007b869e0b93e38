"""Copies of an engine's state. Every rank must call them."""

from typing import Any

from torch import Tensor


def model_of(engine: Any) -> dict[str, Tensor]:
    """Copy the tensors of the model that a checkpoint keeps."""
    return {name: one.detach().to("cpu", copy=True) for name, one in engine.model_state()}


def optimizer_of(engine: Any) -> dict[str, Tensor]:
    """Copy the optimizer's state."""
    return {name: one.detach().to("cpu", copy=True) for name, one in engine.optimizer_state()}


def state_of(engine: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copy both."""
    return model_of(engine), optimizer_of(engine)
