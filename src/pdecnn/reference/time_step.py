"""The one check of every time step h."""

import math


def check_time_step(h: float, where: str) -> None:
    """Raises unless `h` is a positive, finite number."""
    if isinstance(h, bool) or not isinstance(h, (int, float)):
        raise TypeError(f"{where}: h (the time step) must be a number, got {type(h).__name__}.")
    if not (h > 0 and math.isfinite(h)):
        raise ValueError(f"{where}: h (the time step) must be positive and finite, got h={h}.")
