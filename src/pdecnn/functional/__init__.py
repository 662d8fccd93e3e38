"""What one calls: the functions of `reference`, by the fastest kernel of this machine, and differentiable.

Names and signatures are those of `reference`. Functions that have no kernel of their own are the same ones.
"""

from pdecnn.functional.advection_diffusion import advection_diffusion, advection_diffusion_1d, advection_diffusion_3d
from pdecnn.functional.depthwise import (
    depthwise,
    depthwise_adjoint,
    diffusion,
    explicit_diffusion,
    linear_mix,
    linear_mix_adjoint,
)
from pdecnn.functional.shared_stencils import shared_expand, shared_expand_moments, shared_expand_product
from pdecnn.functional.spectral import circulant_filter, implicit_diffusion, implicit_factors, spectral_filter, symbol
from pdecnn.reference.ball import hardball, softball
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.circulant import (
    circulant,
    circulant_adjoint,
    circulant_diffusion,
    circulant_implicit_diffusion,
    circulant_kernel,
    circulant_symbol,
)
from pdecnn.reference.courant import AdvectionStability, measure_stability
from pdecnn.reference.depthwise import autocorrelation, linear_mix_kernel, pointwise, pointwise_adjoint
from pdecnn.reference.reaction_diffusion import DiffusionStability, explicit_step, implicit_step, stability
from pdecnn.reference.spectral import hartley_filter
from pdecnn.reference.variable_conv import variable_conv2d

__all__ = [
    "AdvectionStability",
    "Boundary",
    "DiffusionStability",
    "advection_diffusion",
    "advection_diffusion_1d",
    "advection_diffusion_3d",
    "autocorrelation",
    "circulant",
    "circulant_adjoint",
    "circulant_diffusion",
    "circulant_filter",
    "circulant_implicit_diffusion",
    "circulant_kernel",
    "circulant_symbol",
    "depthwise",
    "depthwise_adjoint",
    "diffusion",
    "explicit_diffusion",
    "explicit_step",
    "hardball",
    "hartley_filter",
    "implicit_diffusion",
    "implicit_factors",
    "implicit_step",
    "linear_mix",
    "linear_mix_adjoint",
    "linear_mix_kernel",
    "measure_stability",
    "pointwise",
    "pointwise_adjoint",
    "shared_expand",
    "shared_expand_moments",
    "shared_expand_product",
    "softball",
    "spectral_filter",
    "stability",
    "symbol",
    "variable_conv2d",
]
