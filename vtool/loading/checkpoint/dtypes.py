"""The element types of safetensors, with the bits of NaN and infinity in each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Float:
    """A type with values that are not finite, which are recognized by their bits.

    Where `infinity` is the pattern of +inf, everything from it up to the sign bit is +inf or NaN,
    and the same with the sign bit set: a comparison of integers, which is several times faster than
    one of floats. Types without infinity have one or two patterns of NaN.
    """

    itemsize: int
    """Bytes of one number; a complex element is two."""
    infinity: int | None = None
    nan: tuple[int, ...] = ()

    def suspicious(self, data: Bytes) -> bool:
        """Return True if any number is not finite: two reductions without a temporary array."""
        unsigned = self._unsigned(data)
        if self.infinity is None:
            return any(bool((unsigned == pattern).any()) for pattern in self.nan)
        sign = 1 << (8 * self.itemsize - 1)
        return bool(
            unsigned.view(f"i{self.itemsize}").max() >= self.infinity
            or unsigned.max() >= sign | self.infinity
        )

    def nans_and_infinities(self, data: Bytes) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks of the NaNs and of the infinities, each one bool a number."""
        unsigned = self._unsigned(data)
        if self.infinity is None:
            return np.isin(unsigned, self.nan), np.zeros(len(unsigned), bool)
        magnitude = unsigned & ((1 << (8 * self.itemsize - 1)) - 1)
        return magnitude > self.infinity, magnitude == self.infinity

    def _unsigned(self, data: Bytes) -> NDArray[Any]:
        return data.view(f"u{self.itemsize}")


# OCP 8-bit formats (2023): E4M3 has no infinity and one NaN a sign, E8M0 is a scale without sign;
# FNUZ types have -0 for NaN.
_BF16, _F32 = Float(2, 0x7F80), Float(4, 0x7F80_0000)
FLOATS: dict[str, Float] = {
    "F16": Float(2, 0x7C00),
    "BF16": _BF16,
    "F32": _F32,
    "C64": _F32,
    "F64": Float(8, 0x7FF0_0000_0000_0000),
    "F8_E5M2": Float(1, 0x7C),
    "F8_E4M3": Float(1, nan=(0x7F, 0xFF)),
    "F8_E8M0": Float(1, nan=(0xFF,)),
    "F8_E4M3FNUZ": Float(1, nan=(0x80,)),
    "F8_E5M2FNUZ": Float(1, nan=(0x80,)),
}

BITS: dict[str, int] = {
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8
    ),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Bits of one element, for every type that safetensors 0.8 knows."""
