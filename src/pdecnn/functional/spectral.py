"""Spectral filters by the fastest way at each size, and the implicit diffusions that are made of them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn import reference
from pdecnn.kernels.library import in_transform
from pdecnn.kernels.spectral_filter.op import run_filter as _filter
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.depthwise import check_stencil
from pdecnn.reference.spectral import check_filter, diagonalisable
from pdecnn.reference.time_step import check_time_step


def spectral_filter(v: Tensor, g: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.spectral_filter` by the fastest kernel for the size and device."""
    boundary = check_filter(v, g, boundary)
    return reference.spectral_filter(v, g, boundary) if in_transform() else _filter(v, g, boundary.value)


def symbol(k: Tensor, size: Sequence[int], boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.symbol` by the sum over the few taps instead of a Fourier transform."""
    boundary = diagonalisable(boundary, "symbol")
    if boundary is Boundary.PERIODIC:
        return _power(k, [2 * math.pi / n for n in size], size)
    frequencies = [math.pi / n for n in size]
    flips = range(2, k.ndim)  # the first axis may stay: the symbol is the same at opposite frequencies
    for axis in flips:
        k = torch.cat([k, k.flip(axis)])
    parts = _power(k, frequencies, size)
    return parts.view(2 ** len(flips), -1, *size).mean(0)


def implicit_diffusion(v: Tensor, k: Tensor, h: float, boundary: str | Boundary = "periodic") -> Tensor:
    """`pdecnn.reference.implicit_diffusion`: `(I + h K^T K)^{-1} v`.

    Example:
        >>> v = torch.rand(8, 16, 32, 32, requires_grad=True)
        >>> k = torch.rand(16, 3, 3, requires_grad=True)
        >>> implicit_diffusion(v, k, h=0.1).sum().backward()
    """
    check_time_step(h, "implicit_diffusion")
    check_stencil(v, k, boundary, "implicit_diffusion")
    boundary = diagonalisable(boundary, "implicit_diffusion")
    if in_transform():
        return reference.implicit_diffusion(v, k, h, boundary)
    return _filter(v, implicit_factors(k, h, v.shape[2:], boundary), boundary.value)


def implicit_factors(k: Tensor, h: float, size: Sequence[int], boundary: str | Boundary = "periodic") -> Tensor:
    """`1 / (1 + h symbol)`: what `implicit_diffusion` multiplies each frequency by. Float32 or wider."""
    s = symbol(k.to(torch.promote_types(k.dtype, torch.float32)), size, boundary)
    return (1 + h * s).reciprocal()


def circulant_filter(v: Tensor, g: Tensor) -> Tensor:
    """`pdecnn.reference.circulant_filter` by the fastest kernel."""
    return spectral_filter(v.unsqueeze(1), g.unsqueeze(0)).squeeze(1)


def _power(k: Tensor, steps: Sequence[float], size: Sequence[int]) -> Tensor:
    r""":math:`|\sum_t k_t e^{-i \omega t}|^2` at the frequencies `step * p` along each axis."""
    k_hat = k.to(torch.promote_types(k.dtype, torch.complex64))
    for axis, (step, n) in enumerate(zip(steps, size, strict=True), start=1):
        t, p = torch.arange(k.shape[axis], device=k.device), torch.arange(n, device=k.device)
        angle = step * (t[:, None] * p).to(k.dtype)
        wave = torch.complex(angle.cos(), -angle.sin())
        k_hat = (k_hat.movedim(axis, -1) @ wave).movedim(-1, axis)
    return k_hat.real.square() + k_hat.imag.square()
