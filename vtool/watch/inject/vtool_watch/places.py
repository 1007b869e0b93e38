"""Handles what differs between devices: float64, TF32, random states, even places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

WITH_FLOAT64 = ("cpu", "cuda")
"""Devices that have it for sure: MPS refuses it, some of XPU lack it, an NPU makes it float32."""


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU where its own device may have none."""
    return (tensor if tensor.device.type in WITH_FLOAT64 else tensor.cpu()).double()


def widest(device: torch.device) -> torch.dtype:
    """Return the widest dtype of numbers that a device has for sure."""
    return torch.float64 if device.type in WITH_FLOAT64 else torch.float32


def evenly_spaced(length: int, most: int, device: torch.device) -> Tensor:
    """Return at most so many places of so many, from the first to the last.

    `torch.linspace` counts in the default dtype, which in bfloat16 names places that are not
    there: on a GPU, to read one of those ends the process.
    """
    count = min(length, most)
    at = torch.arange(count, dtype=torch.int64, device=device)
    return at * (length - 1) // max(1, count - 1)


def multiplies_in_tf32(device: torch.device) -> bool:
    """Return whether products of float32 matrices may be rounded to TF32 on a device."""
    if device.type != "cuda":
        return False
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # it was set by `fp32_precision`: the older setting cannot be read then
        return getattr(matmul, "fp32_precision", "tf32") not in ("ieee", "none")


def convolves_in_tf32(device: torch.device) -> bool:
    """Return whether convolutions in float32 may be rounded to TF32 on a device: CUDA's default."""
    if device.type != "cuda":
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return True


@contextmanager
def random_states_kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put the random states of the CPU and of some devices back in the end."""
    kept: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    for device in sorted(set(devices), key=str):
        module: Any = getattr(torch, device.type, None)
        if device.type not in ("cpu", "meta") and hasattr(module, "get_rng_state"):
            which = () if device.type == "mps" else (device,)  # there is one of them
            kept.append((module.set_rng_state, (module.get_rng_state(*which), *which)))
    with torch.random.fork_rng(devices=[], device_type="cuda"):
        try:
            yield
        finally:
            for put_back, state in kept:
                put_back(*state)
