"""Copies of an engine's state, which every rank must call, and what stands for it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from vtool.engines.contract import Owner


def model_of(engine: Any) -> dict[str, Tensor]:
    """Copy the tensors of the model that a checkpoint keeps."""
    return {name: one.detach().to("cpu", copy=True) for name, one in engine.model_state()}


def optimizer_of(engine: Any) -> dict[str, Tensor]:
    """Copy the optimizer's state."""
    return {name: one.detach().to("cpu", copy=True) for name, one in engine.optimizer_state()}


def state_of(engine: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copy both."""
    return model_of(engine), optimizer_of(engine)


def held(
    pairs: Iterable[tuple[str, Tensor]], rank: int = 0
) -> Callable[[Owner], Iterator[tuple[str, Tensor]]]:
    """Tensors that each rank has, as an engine with such yields them."""

    def owned(owner: Owner) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in pairs:
            if owner(tensor.nbytes) in (None, rank):
                yield name, tensor

    return owned
