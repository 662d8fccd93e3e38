"""The shared-stencil expansion of the hyperbolic networks, by the fastest kernel of this machine."""

import torch
from torch import Tensor

from pdecnn import reference
from pdecnn.kernels.library import in_transform
from pdecnn.kernels.shared_expand import op as op


def shared_expand(u: Tensor, stencils: Tensor, stride: int = 1) -> Tensor:
    """`pdecnn.reference.shared_expand`, computed by the fastest kernel."""
    if in_transform():
        return reference.shared_expand(u, stencils, stride)
    out: Tensor = torch.ops.pdecnn.shared_expand(u, stencils, stride)
    return out


def shared_expand_moments(u: Tensor, stencils: Tensor, stride: int = 1) -> tuple[Tensor, Tensor]:
    """`pdecnn.reference.shared_expand_moments`, computed by the fastest kernel; the expansion is not stored."""
    if in_transform():
        return reference.shared_expand_moments(u, stencils, stride)
    mean, var = torch.ops.pdecnn.shared_expand_moments(u, stencils, stride)
    return mean, var


def shared_expand_product(
    u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int = 1
) -> Tensor:
    """`pdecnn.reference.shared_expand_product`, computed by the fastest kernel; the expansion is not stored."""
    if in_transform():
        return reference.shared_expand_product(u, stencils, scale, shift, c, stride)
    out: Tensor = torch.ops.pdecnn.shared_expand_product(u, stencils, scale, shift, c, stride)
    return out
