"""Law-checkers for solvers and layers, ours and yours."""

from pdecnn.testing.equivariance import assert_equivariant as assert_equivariant
from pdecnn.testing.equivariance import assert_same_function as assert_same_function
from pdecnn.testing.equivariance import equivariance_error as equivariance_error
from pdecnn.testing.equivariance import mixing as mixing
from pdecnn.testing.laws import assert_conserves as assert_conserves
from pdecnn.testing.laws import assert_matches_reference as assert_matches_reference
from pdecnn.testing.order import assert_order as assert_order
from pdecnn.testing.order import measured_orders as measured_orders
