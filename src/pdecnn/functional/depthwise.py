"""Depth-wise stencils by the fastest kernel, and the diffusions that are made of them."""

import torch
from torch import Tensor

from pdecnn.kernels.depthwise.op import adjoint as _adjoint
from pdecnn.kernels.depthwise.op import correlate as _correlate
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.depthwise import autocorrelation, check_stencil, pointwise, reflected
from pdecnn.reference.time_step import check_time_step


def depthwise(y: Tensor, k: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.depthwise` by the fastest kernel of the device."""
    return _correlate(y, k, check_stencil(y, k, boundary, "depthwise").value)


def depthwise_adjoint(z: Tensor, k: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.depthwise_adjoint` by the fastest kernel of the device."""
    return _adjoint(z, k, check_stencil(z, k, boundary, "depthwise_adjoint").value)


def diffusion(y: Tensor, k: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.diffusion`: `K^T K y` in one pass, two where zeros lie beyond the border."""
    boundary = check_stencil(y, k, boundary, "diffusion")
    if boundary is Boundary.DIRICHLET:
        return _adjoint(_correlate(y, k, boundary.value), k, boundary.value)
    return _correlate(y, _square(k, boundary), boundary.value)


def explicit_diffusion(y: Tensor, k: Tensor, h: float, boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.explicit_diffusion`: `(I - h K^T K) y` is one stencil too."""
    check_time_step(h, "explicit_diffusion")
    boundary = check_stencil(y, k, boundary, "explicit_diffusion")
    if boundary is Boundary.DIRICHLET:
        return y - h * diffusion(y, k, boundary)
    return _correlate(y, explicit_stencil(k, h, boundary), boundary.value)


def explicit_stencil(k: Tensor, h: float, boundary: Boundary) -> Tensor:
    """The stencil of `I - h K^T K`, `(C, 2m - 1, ...)`."""
    a = _square(k, boundary)
    identity = torch.zeros(a.shape[1:], dtype=a.dtype, device=a.device)
    identity[tuple(m // 2 for m in identity.shape)] = 1
    return identity - h * a


def linear_mix(y: Tensor, k: Tensor, M: Tensor, boundary: str | Boundary = "dirichlet") -> Tensor:
    """`pdecnn.reference.linear_mix`: `K y + M y`."""
    return depthwise(y, k, boundary) + pointwise(y, M)


def linear_mix_adjoint(z: Tensor, k: Tensor, M: Tensor, boundary: str | Boundary = "dirichlet") -> Tensor:
    """`pdecnn.reference.linear_mix_adjoint`: `K^T z + M^T z`."""
    return depthwise_adjoint(z, k, boundary) + pointwise(z, M.T)


def _square(k: Tensor, boundary: Boundary) -> Tensor:
    a = autocorrelation(k)
    return a if boundary is Boundary.PERIODIC else reflected(a)
