"""Law-checkers for solvers and layers, ours and yours."""

from pdecnn.testing.laws import assert_conserves as assert_conserves
from pdecnn.testing.laws import assert_matches_reference as assert_matches_reference
from pdecnn.testing.order import assert_order as assert_order
from pdecnn.testing.order import measured_orders as measured_orders
