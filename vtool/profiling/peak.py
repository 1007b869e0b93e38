"""What a device can do at most:

measured, for what is on data sheets is of another clock, another power limit, another library.
"""

import time

import torch

from vtool.devices.profiling import synchronize

SIZES = {"cpu": 768}
"""Rows and columns of the matrices; other devices than a CPU take `LARGE`."""
LARGE = 8192
REPEATS = 8


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating point operations a second of the best of some matrix products, 2n³ each. It draws no
    random numbers.

    Raises:
        RuntimeError: the device has no room for it, or no product of this type.
    """
    size = SIZES.get(device.type, LARGE)
    one = torch.full((size, size), 0.5, dtype=dtype, device=device)
    other, out = torch.full_like(one, 0.25), torch.empty_like(one)
    best = float("inf")
    with torch.no_grad():
        for _ in range(REPEATS):
            synchronize(device)
            began = time.perf_counter()
            torch.mm(one, other, out=out)
            synchronize(device)
            best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
