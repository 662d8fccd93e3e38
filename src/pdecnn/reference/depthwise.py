r"""Operators on features with few weights, each with its adjoint: depth-wise, point-wise and their sum.

A stencil bank `k` of shape `(C, m)`, `(C, m, m)` or `(C, m, m, m)` holds one odd-sized stencil per channel. As in every
deep-learning library "convolution" means correlation, here in two dimensions with the centre tap at `k[:, 1, 1]` of a
3x3 stencil [RD, Eq. (5)]:

.. math:: (K y)_{r,s} = \sum_{p,q} k_{p,q}\, y_{r + p - 1,\, s + q - 1}

What lies beyond the border is named by `Boundary`: the opposite border (periodic), the mirror image (Neumann) or
zeros (Dirichlet, the padding of most networks). Images may be smaller than the stencil: the border then wraps or
mirrors as often as it takes.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.reference.boundary import Boundary

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
CONV_TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def depthwise(y: Tensor, k: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    """Correlates each channel of `y`, `(N, C, ...)`, with its own stencil `k[c]`.

    Example:
        >>> y = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
        >>> depthwise(y, k=torch.tensor([[0.0, 0.0, 1.0]]))  # the neighbour at the next index
        tensor([[[2., 4., 8., 1.]]])
    """
    boundary = check_stencil(y, k, boundary, "depthwise")
    radius = [m // 2 for m in k.shape[1:]]
    return CONV[k.ndim - 1](extend(y, radius, boundary), k.unsqueeze(1), groups=k.shape[0])


def depthwise_adjoint(z: Tensor, k: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    """`K^T z`: the operator with `<depthwise(y, k), z> = <y, depthwise_adjoint(z, k)>`."""
    boundary = check_stencil(z, k, boundary, "depthwise_adjoint")
    radius = [m // 2 for m in k.shape[1:]]
    return extend_adjoint(CONV_TRANSPOSE[k.ndim - 1](z, k.unsqueeze(1), groups=k.shape[0]), radius, boundary)


def pointwise(y: Tensor, M: Tensor) -> Tensor:
    """Mixes channels by the matrix `M` of shape `(C_out, C_in)` at every pixel: the 1x1 convolution [RD, Eq. (6)]."""
    if M.ndim != 2 or y.ndim < 2 or M.shape[1] != y.shape[1]:
        raise ValueError(
            f"pointwise: expected M of shape (C_out, C) and y of shape (N, C, ...), got {tuple(M.shape)} "
            f"and {tuple(y.shape)}."
        )
    d = y.ndim - 2
    return CONV[d](y, M.reshape(*M.shape, *(1,) * d))


def pointwise_adjoint(z: Tensor, M: Tensor) -> Tensor:
    """`M^T` at every pixel."""
    return pointwise(z, M.T)


def linear_mix(y: Tensor, k: Tensor, M: Tensor, boundary: str | Boundary = "dirichlet") -> Tensor:
    """`K y + M y`: a depth-wise plus a point-wise operator in place of a full convolution [RD, Eq. (7)]."""
    return depthwise(y, k, boundary) + pointwise(y, M)


def linear_mix_adjoint(z: Tensor, k: Tensor, M: Tensor, boundary: str | Boundary = "dirichlet") -> Tensor:
    """`K^T z + M^T z`."""
    return depthwise_adjoint(z, k, boundary) + pointwise_adjoint(z, M)


def linear_mix_kernel(k: Tensor, M: Tensor) -> Tensor:
    """The full convolution `(C, C, m, ...)` that equals `linear_mix`: `k` on the diagonal, `M` in the centre taps.

    One call of a library's convolution with this kernel is the faster form where there are few channels.
    """
    kernel = torch.diag_embed(k.movedim(0, -1)).movedim((-2, -1), (0, 1))  # (C, C, m, ...)
    centre = torch.zeros(k.shape[1:], dtype=k.dtype, device=k.device)
    centre[tuple(m // 2 for m in k.shape[1:])] = 1
    return kernel + M.reshape(*M.shape, *(1,) * centre.ndim) * centre


def autocorrelation(k: Tensor) -> Tensor:
    r"""The stencil of `K^T K`: `a[d] = \sum_r k[r] k[r + d]`, of size `2m - 1` along each axis.

    `a` does not change under point reflection, `a[d] = a[-d]`, but in general does under a reflection of one axis.

    Example:
        >>> autocorrelation(torch.tensor([[1.0, -2.0, 1.0]]))
        tensor([[ 1., -4.,  6., -4.,  1.]])
    """
    d = k.ndim - 1
    padding = [m - 1 for m in k.shape[1:]]
    return CONV[d](k.unsqueeze(0), k.unsqueeze(1), padding=padding, groups=k.shape[0]).squeeze(0)


def reflected(a: Tensor) -> Tensor:
    """The mean of `a` over the reflections of each axis but the first; even along each of them."""
    for axis in range(1, a.ndim):
        a = (a + a.flip(axis)) / 2
    return a


def diffusion(y: Tensor, k: Tensor, boundary: str | Boundary = "periodic") -> Tensor:
    r"""`K^T K y`, the (negative) diffusion of [RD, Eq. (8)].

    Periodic: one pass with the `autocorrelation` stencil. Dirichlet: two passes, as that identity fails at the border.
    Neumann: the gradient of the energy `|K E y|^2 / 2^{d+1}` of the image and its mirror images `E y` on the torus of
    twice the size: one pass with the `reflected` autocorrelation. If every stencil is even along each axis this is
    `K^T K` with mirrored borders; for the others it keeps what makes Neumann diffusion solvable by cosines.
    """
    boundary = check_stencil(y, k, boundary, "diffusion")
    if boundary is Boundary.DIRICHLET:
        return depthwise_adjoint(depthwise(y, k, boundary), k, boundary)
    a = autocorrelation(k)
    return depthwise(y, a if boundary is Boundary.PERIODIC else reflected(a), boundary)


def extend(y: Tensor, radius: list[int], boundary: Boundary) -> Tensor:
    """`y` with `radius[i]` more values at both ends of its axis `2 + i`."""
    if boundary is Boundary.DIRICHLET:
        return functional.pad(y, [r for r in reversed(radius) for _ in range(2)])
    for axis, r in enumerate(radius, start=2):
        y = y.index_select(axis, _sources(y.shape[axis], r, boundary, y.device))
    return y


def extend_adjoint(z: Tensor, radius: list[int], boundary: Boundary) -> Tensor:
    """Adds to each pixel what `extend` copied from it: the adjoint of `extend`."""
    if boundary is Boundary.DIRICHLET:
        return functional.pad(z, [-r for r in reversed(radius) for _ in range(2)])
    for axis, r in enumerate(radius, start=2):
        n = z.shape[axis] - 2 * r
        zeros = z.new_zeros([n if i == axis else s for i, s in enumerate(z.shape)])
        z = zeros.index_add(axis, _sources(n, r, boundary, z.device), z)
    return z


def check_stencil(y: Tensor, k: Tensor, boundary: str | Boundary, where: str) -> Boundary:
    """Raises a ValueError or TypeError that names what is wrong with `y` or `k`."""
    boundary = Boundary.parse(boundary, where)
    d = k.ndim - 1
    if d not in CONV:
        raise ValueError(f"{where}: expected k of shape (C, m), (C, m, m) or (C, m, m, m), got {tuple(k.shape)}.")
    if any(m % 2 == 0 for m in k.shape[1:]):
        raise ValueError(f"{where}: stencils must have an odd size, to have a centre; got k of shape {tuple(k.shape)}.")
    if y.ndim != d + 2 or y.shape[1] != k.shape[0]:
        expected = ", ".join(("N", str(k.shape[0]), *"DHW"[3 - d :]))
        raise ValueError(
            f"{where}: with k of shape {tuple(k.shape)} expected features of shape ({expected}), got {tuple(y.shape)}."
        )
    if 0 in y.shape[1:]:
        raise ValueError(f"{where}: features of shape {tuple(y.shape)} are empty; only the batch may be.")
    if not y.is_floating_point():
        raise TypeError(f"{where}: features must have a floating-point dtype, got {y.dtype}. Use y.float().")
    return boundary


def _sources(n: int, r: int, boundary: Boundary, device: torch.device) -> Tensor:
    """Where the values at `-r, ..., n - 1 + r` of an extended axis come from."""
    i = torch.arange(-r, n + r, device=device)
    if boundary is Boundary.PERIODIC:
        return i % n
    return torch.minimum(i % (2 * n), (2 * n - 1) - i % (2 * n))
