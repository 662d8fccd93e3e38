"""The shared-stencil expansion of the hyperbolic networks, by the fastest kernel of this machine."""

from pdecnn.functional.shared_stencils import shared_expand as shared_expand
from pdecnn.functional.shared_stencils import shared_expand_moments as shared_expand_moments
from pdecnn.functional.shared_stencils import shared_expand_product as shared_expand_product
