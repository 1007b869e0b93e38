"""Functions of a device for profilers: waiting, memory, named ranges, torch_npu's profiler."""

import importlib
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

Range = Callable[[str], AbstractContextManager[None]]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work that was queued. A CPU has."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def ranges(device: torch.device) -> Range | None:
    """Return named ranges for the vendor's viewers: NVTX on CUDA, mstx on NPU, none on a CPU."""
    if device.type == "cuda":
        return _nvtx
    return _mstx if device.type == "npu" else None


@contextmanager
def _nvtx(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@contextmanager
def _mstx(name: str) -> Iterator[None]:
    npu: Any = torch.get_device_module("npu")
    opened = npu.mstx.range_start(name, npu.current_stream())
    try:
        yield
    finally:
        npu.mstx.range_end(opened)


def forget_peak_memory(device: torch.device) -> None:
    """Reset `peak_memory`; that of a process on a CPU, which the system keeps, cannot be reset."""
    if device.type != "cpu":
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> tuple[int, str]:
    """Return the most memory that was in use, in bytes, and in words by what."""
    if device.type == "cpu":
        return (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "of the process, since it began",
        )
    return (
        int(torch.get_device_module(device).max_memory_allocated(device)),
        "of tensors on the device, in the recorded steps",
    )


def npu_profiler() -> Any:
    """Return torch_npu's profiler."""
    return importlib.import_module("torch_npu.profiler")
