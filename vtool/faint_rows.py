"""Rows of an embedding that nothing has been learnt into: zero, or as a resize has made them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

FAINT = 1e-3
"""A row is as good as zero below this part of the median size: a norm behind it multiplies its
gradient by 1/√eps.
"""
_MEAN = 1e-2
"""transformers draws new rows around the mean of all, 3e-5 of their spread apart; nothing that is
learnt lies so near.
"""
_ROWS = 4096
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

_Numbers = NDArray[np.float32]


def row_sizes(data: NDArray[np.uint8], dtype: str, rows: int) -> NDArray[np.float64] | None:
    """Return the root mean square of each row of a matrix; None for a dtype that is not read.

    Args:
        data: the bytes of the matrix.
        dtype: as safetensors names it.
        rows: how many it has.
    """
    if dtype not in _DTYPES or not rows:
        return None
    sizes = [
        np.sqrt(np.square(part, dtype=np.float64).mean(1)) for part in _parts(data, dtype, rows)
    ]
    return np.concatenate(sizes)


def faint_rows(sizes: NDArray[np.float64]) -> list[int]:
    """Return the rows that are zero or nearly so; none where all are."""
    there = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(there):
        return []
    return np.flatnonzero(sizes <= FAINT * np.median(there)).tolist()


def rows_at_mean(data: NDArray[np.uint8], dtype: str, rows: int) -> list[int]:
    """Return the rows that lie at the mean of all, as transformers' resize makes new ones."""
    sizes = row_sizes(data, dtype, rows)
    if sizes is None or rows < 2 or not np.isfinite(sizes).all():
        return []
    usual = float(np.median(sizes))
    mean = sum(part.sum(0, dtype=np.float64) for part in _parts(data, dtype, rows)) / rows
    apart = [
        np.sqrt(np.square(part - mean, dtype=np.float64).mean(1))
        for part in _parts(data, dtype, rows)
    ]
    return np.flatnonzero(np.concatenate(apart) <= _MEAN * usual).tolist()


def as_numbers(data: NDArray[np.uint8], dtype: str) -> _Numbers:
    """Return numbers of safetensors' bytes, in float32."""
    values = data.view(_DTYPES[dtype])
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _parts(data: NDArray[np.uint8], dtype: str, rows: int) -> Iterator[_Numbers]:
    """Yield a matrix some rows at a time."""
    wide = len(data) // rows
    for begin in range(0, rows, _ROWS):
        count = min(_ROWS, rows - begin)
        part = np.ascontiguousarray(data[begin * wide : (begin + count) * wide])
        yield as_numbers(part, dtype).reshape(count, -1)
