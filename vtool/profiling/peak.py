"""The peak arithmetic of a device, measured.

Data sheets are of another clock, another power limit and another library.
"""

import time

import torch

from vtool.devices.profiling import synchronize

SIZES = {"cpu": 768}
"""Rows and columns of the matrices by device type; other devices take `_LARGE`."""
_LARGE = 8192
_REPEATS = 8


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of the best of several matrix products, 2n³ FLOPs each.

    It draws no random numbers.

    Raises:
        RuntimeError: the device has no room for it, or no product of this type.
    """
    size = SIZES.get(device.type, _LARGE)
    one = torch.full((size, size), 0.5, dtype=dtype, device=device)
    other, out = torch.full_like(one, 0.25), torch.empty_like(one)
    best = float("inf")
    with torch.no_grad():
        for _ in range(_REPEATS):
            synchronize(device)
            started = time.perf_counter()
            torch.mm(one, other, out=out)
            synchronize(device)
            best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
