"""Numbers as integers: 8-bit values with a scale and a zero, and factors as a multiplier and a shift."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

LOW, HIGH = -128, 127


@dataclass(frozen=True)
class Quant:
    """`x = scale * (q - zero)` with q from -128 to 127.

    Example:
        >>> small = Quant.between(0.0, 2.55)
        >>> int(small.of(0.0)), int(small.of(1.0)), int(small.of(9.0))
        (-128, -28, 127)
    """

    scale: float
    zero: int

    @classmethod
    def between(cls, low: float, high: float) -> "Quant":
        """For values from `low` to `high`; 0 is one of those that are kept exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low if high - low > 1e-9 else 1.0) / (HIGH - LOW)  # 1 for what is always 0
        return cls(scale, int(np.clip(round(LOW - low / scale), LOW, HIGH)))

    def of(self, x: Any) -> Any:
        """The nearest integers."""
        return np.clip(np.rint(np.asarray(x, np.float64) / self.scale) + self.zero, LOW, HIGH).astype(np.int64)

    def real(self, q: Any) -> Any:
        """What integers stand for."""
        return (np.asarray(q, np.int64) - self.zero) * self.scale

    def bounds(self, low: float, high: float) -> tuple[int, int]:
        """The least and the largest integer between two real bounds."""
        return int(self.of(max(low, -1e30))), int(self.of(min(high, 1e30)))


def fixed(*factors: Any, bits: int = 31) -> tuple[list[Any], int]:
    """Integers of `bits` bits and one shift for all: `integer / 2^shift` is near each factor.

    Example:
        >>> fixed(0.75, 0.5, bits=8)
        ([192, 128], 8)
    """
    largest = max(float(np.abs(q).max(initial=0.0)) for q in map(np.asarray, factors))
    if not 2.0**-30 < largest < 2.0**20:
        raise NotImplementedError(f"a factor of {largest:.1e} between two scales")
    shift = bits - 1 - math.floor(math.log2(largest))
    made = [np.rint(np.asarray(q, np.float64) * 2.0**shift).astype(np.int64) for q in factors]
    if max(int(np.abs(q).max(initial=0)) for q in made) >= 1 << bits:  # rounded up to one bit more
        return fixed(*factors, bits=bits - 1)
    return [q if q.ndim else int(q) for q in made], shift


def fixed_upper(*factors: Any) -> tuple[list[Any], int]:
    """`fixed` for a shift of the upper halves of products: it is the shift less 32."""
    made, shift = fixed(*factors)
    if shift < 33:
        raise NotImplementedError("a factor between two scales that is more than a quarter")
    return made, shift - 32


def rescaled(value: Any, shift: int) -> Any:
    """`value / 2^shift`, halves up, as `rescaled` in parts/int8.c."""
    return (value + (1 << (shift - 1))) >> shift
