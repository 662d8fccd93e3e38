"""Law-checkers for solvers and layers, ours and yours."""

from pdecnn.testing.equivariance import assert_equivariant, assert_same_function, equivariance_error, mixing
from pdecnn.testing.laws import assert_conserves, assert_matches_reference
from pdecnn.testing.order import assert_order, measured_orders

__all__ = [
    "assert_conserves",
    "assert_equivariant",
    "assert_matches_reference",
    "assert_order",
    "assert_same_function",
    "equivariance_error",
    "measured_orders",
    "mixing",
]
