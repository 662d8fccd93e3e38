"""Measures the order of accuracy of a scheme."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise


def measured_orders(errors: Sequence[float], spacings: Sequence[float]) -> list[float]:
    """The slopes of `log(error)` over `log(spacing)` between consecutive refinements.

    Example:
        >>> measured_orders([0.4, 0.1, 0.025], [0.2, 0.1, 0.05])
        [2.0, 2.0]
    """
    if len(errors) != len(spacings) or len(errors) < 2:
        raise ValueError(
            f"measured_orders: expected as many errors as spacings and at least two, "
            f"got {len(errors)} errors and {len(spacings)} spacings."
        )
    pairs = pairwise(zip(errors, spacings, strict=True))
    return [math.log(e / e_fine) / math.log(s / s_fine) for (e, s), (e_fine, s_fine) in pairs]


def assert_order(
    error: Callable[[float], float], spacings: Sequence[float], order: float, *, tolerance: float = 0.1
) -> list[float]:
    """Asserts that `error(spacing)` falls like `spacing ** order`, and returns the measured orders.

    The finest pair of `spacings` must show at least `order - tolerance`; coarser grids may not have reached the slope.

    Example:
        The central difference of the sine at 1 is of second order.

        >>> import math
        >>> def error(dx: float) -> float:
        ...     return abs((math.sin(1 + dx) - math.sin(1 - dx)) / (2 * dx) - math.cos(1))
        >>> [round(p, 2) for p in assert_order(error, [0.2, 0.1, 0.05], order=2)]
        [2.0, 2.0]
    """
    errors = [error(spacing) for spacing in spacings]
    orders = measured_orders(errors, spacings)
    if not orders[-1] >= order - tolerance:
        table = ", ".join(f"{s:g}: {e:.3e}" for s, e in zip(spacings, errors, strict=True))
        raise AssertionError(
            f"assert_order: expected order {order:g} (tolerance {tolerance:g}), measured {orders[-1]:.3f} "
            f"on the finest pair. Errors by spacing: {table}."
        )
    return orders
