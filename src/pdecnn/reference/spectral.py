r"""Periodic stencil operators in the Fourier basis, and mirrored ones in the cosine basis.

A stencil operator on a periodic grid is diagonal in the Fourier basis, and `K^T K` has there the eigenvalues

.. math:: |\hat k(\omega)|^2, \qquad \hat k(\omega) = \sum_t k_t\, e^{-i \omega \cdot t}

at the grid's frequencies :math:`\omega = 2 \pi (p / H, q / W)`: real, not negative, and equal at :math:`\pm\omega`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.reference.boundary import Boundary


def embed(k: Tensor, size: Sequence[int], *, centred: bool = False) -> Tensor:
    """Lays the stencils `(C, m, ...)` on grids of `size`, first tap at the origin (`centred`: centre tap there).

    Taps that leave the grid come in on its other side and add up, so that grids may be smaller than the stencil.

    Example:
        >>> embed(torch.tensor([[1.0, 10.0, 100.0]]), (2,))
        tensor([[101.,  10.]])
    """
    for axis, n in enumerate(size, start=1):
        m = k.shape[axis]
        at = (torch.arange(m, device=k.device) - (m // 2 if centred else 0)) % n
        grid = k.new_zeros([n if i == axis else s for i, s in enumerate(k.shape)])
        k = grid.index_add(axis, at, k)
    return k


def symbol(k: Tensor, size: Sequence[int], boundary: str | Boundary = "periodic") -> Tensor:
    r"""The eigenvalues of `diffusion(., k)` on a grid of `size`, as an array `(C, *size)` over the frequencies.

    Periodic: :math:`|\hat k|^2`. Neumann: its mean over the reflections of each axis at the frequencies
    :math:`\pi p / H` of the cosine transform.

    Example:
        >>> symbol(torch.tensor([[1.0, -2.0, 1.0]]), (4,))  # (2 - 2 cos w)^2
        tensor([[ 0.,  4., 16.,  4.]])
    """
    boundary = diagonalisable(boundary, "symbol")
    axes = list(range(1, k.ndim))
    if boundary is Boundary.PERIODIC:
        k_hat: Tensor = torch.fft.fftn(embed(k, size), dim=axes)
        return k_hat.real.square() + k_hat.imag.square()
    s = symbol(k, [2 * n for n in size], Boundary.PERIODIC)
    for axis in axes:
        s = (s + negated(s, axis)) / 2
    for axis, n in enumerate(size, start=1):
        s = s.narrow(axis, 0, n)
    return s


def spectral_filter(v: Tensor, g: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    r"""Multiplies `v`, `(N, C, ...)`, by `g`, `(C, ...)` of the same size, in the basis of the boundary.

    Periodic: the real part of :math:`F^{-1}(g \cdot F v)`. Neumann: the same with the orthonormal cosine transform.
    The operator is its own adjoint, and depends on `g` only through the mean of its values at
    :math:`\omega` and :math:`-\omega`.
    """
    boundary = check_filter(v, g, boundary)
    axes = list(range(2, v.ndim))
    if boundary is Boundary.PERIODIC:
        filtered: Tensor = torch.fft.ifftn(g * torch.fft.fftn(v, dim=axes), dim=axes)
        return filtered.real
    for axis in axes:
        v = along(v, cosine_matrix(v.shape[axis], v.dtype, v.device), axis)
    v = g * v
    for axis in axes:
        v = along(v, cosine_matrix(v.shape[axis], v.dtype, v.device).T, axis)
    return v


def hartley_filter(v: Tensor, g: Tensor) -> Tensor:
    r"""The periodic `spectral_filter` of images by matrix products alone, for runtimes without an FFT.

    With the Hartley matrices `H = cos + sin` and `H' = cos - sin`, and `g` split into its parts `g_e` even and `g_o`
    odd along each axis, the filter is :math:`H (g_e \cdot T) H - H' (g_o \cdot T) H'` with :math:`T = H v H`.
    """
    rows, columns = v.shape[-2:]
    g_e, g_o = even_and_odd(g)
    R, C = (hartley_matrix(n, v.dtype, v.device) for n in (rows, columns))
    R_, C_ = (negated(m, 0) for m in (R, C))
    T = R @ v @ C
    return R @ (g_e * T) @ C - R_ @ (g_o * T) @ C_


def even_and_odd(g: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of `g`, made point symmetric in its last two axes, that are even and odd along each of them."""
    g = (g + negated(g, -2, -1)) / 2
    mirrored = negated(g, -1)
    return (g + mirrored) / 2, (g - mirrored) / 2


def negated(s: Tensor, *axes: int) -> Tensor:
    """`s` at the frequencies `-p mod n` along `axes`."""
    return s.flip(axes).roll([1] * len(axes), axes)


def hartley_matrix(n: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """`(cos + sin)(2 pi j k / n) / sqrt(n)`: real, symmetric, its own inverse."""
    j = torch.arange(n, device=device)
    angle = (2 * math.pi / n) * (j[:, None] * j % n).to(torch.float64)
    return ((angle.cos() + angle.sin()) / math.sqrt(n)).to(dtype)


def cosine_matrix(n: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The orthonormal cosine transform (DCT-II): row `p` is `cos(pi p (j + 1/2) / n)`, normalised."""
    j = torch.arange(n, device=device, dtype=torch.float64)
    D = torch.cos((math.pi / n) * j[:, None] * (j + 0.5)) * math.sqrt(2 / n)
    D[0] /= math.sqrt(2)
    return D.to(dtype)


def along(v: Tensor, A: Tensor, axis: int) -> Tensor:
    """The matrix `A` applied to `v` along `axis`."""
    return (v.movedim(axis, -1) @ A.T).movedim(-1, axis)


def check_filter(v: Tensor, g: Tensor, boundary: str | Boundary) -> Boundary:
    """Raises a ValueError or TypeError that names the argument, what came and what is expected."""
    where = "spectral_filter"
    if v.ndim < 3 or g.shape != v.shape[1:]:
        raise ValueError(
            f"{where}: expected v of shape (N, C, ...) and g of shape (C, ...), got v {tuple(v.shape)} "
            f"and g {tuple(g.shape)}."
        )
    if 0 in v.shape[1:]:
        raise ValueError(f"{where}: v has an empty grid, shape {tuple(v.shape)}; only the batch may be empty.")
    for name, q in (("v", v), ("g", g)):
        if not q.is_floating_point():
            raise TypeError(f"{where}: {name} must have a floating-point dtype, got {q.dtype}. Use {name}.float().")
    if v.device != g.device:
        raise ValueError(f"{where}: g is on {g.device} but v is on {v.device}. Use g.to(v.device).")
    return diagonalisable(boundary, where)


def diagonalisable(boundary: str | Boundary, where: str) -> Boundary:
    """The boundary, refused if stencils are not diagonal in any fixed basis there."""
    boundary = Boundary.parse(boundary, where)
    if boundary is Boundary.DIRICHLET:
        raise ValueError(
            f"{where}: no transform diagonalises a general stencil with zeros beyond the border. "
            "Use boundary='periodic' or 'neumann'."
        )
    return boundary
