r"""Convolution whose stencil is a polynomial of the place: linear PDEs with variable coefficients.

.. math:: (L u)(x, y) = \sum_{p + q \le d} x^p y^q \, (w_{pq} * u)(x, y)

Of degree 1 this holds the generators of rotation, `x d/dy - y d/dx`, and of dilation, `x d/dx + y d/dy`. Coordinates
are zero at the middle of the picture; x runs along W, y along H, both with the index.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from pdecnn.reference.boundary import Boundary

PADDING_MODES = {Boundary.PERIODIC: "circular", Boundary.NEUMANN: "replicate", Boundary.DIRICHLET: "constant"}


def monomials(degree: int) -> list[tuple[int, int]]:
    """The exponents `(p, q)` of `x^p y^q` up to a total degree, by degree and then falling p.

    Example:
        >>> monomials(2)
        [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]
    """
    return [(total - q, q) for total in range(degree + 1) for q in range(total + 1)]


def centred_coordinates(H: int, W: int, spacing: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinates `x` of shape `(W,)` and `y` of shape `(H, 1)`, in steps of `spacing`, zero in the middle."""
    x = (torch.arange(W, dtype=like.dtype, device=like.device) - (W - 1) / 2) * spacing
    y = (torch.arange(H, dtype=like.dtype, device=like.device) - (H - 1) / 2) * spacing
    return x, y.unsqueeze(1)


def variable_conv2d(
    u: Tensor,
    weight: Tensor,
    *,
    degree: int,
    groups: int = 1,
    spacing: float | None = None,
    boundary: str | Boundary = "dirichlet",
) -> Tensor:
    """Evaluates the operator above on a grid.

    Args:
        u: State, `(N, C_in, H, W)`.
        weight: `(P, C_out, C_in / groups, k, k)` with odd k, one kernel for each of `monomials(degree)`.
        degree: Total degree of the polynomials.
        groups: As in `conv2d`; `C_in` for depth-wise operators.
        spacing: Distance of neighbouring pixels; by default `2 / max(H, W)`, so that coordinates lie in [-1, 1].
        boundary: `"periodic"`, `"neumann"` (mirrored) or `"dirichlet"` (zeros).

    Shape:
        `(N, C_in, H, W) -> (N, C_out, H, W)`.
    """
    where = "variable_conv2d"
    boundary = Boundary.parse(boundary, where)
    exponents = monomials(degree)
    if weight.ndim != 5 or weight.shape[0] != len(exponents):
        raise ValueError(
            f"{where}: expected weight of shape ({len(exponents)}, C_out, C_in / groups, k, k) for degree {degree}, "
            f"got {tuple(weight.shape)}."
        )
    k = weight.shape[-1]
    if k % 2 == 0 or weight.shape[-2] != k:
        raise ValueError(f"{where}: the kernels must be square and odd, got {weight.shape[-2]} x {k}.")
    if u.ndim != 4 or u.shape[1] != groups * weight.shape[2]:
        raise ValueError(f"{where}: expected u of shape (N, {groups * weight.shape[2]}, H, W), got {tuple(u.shape)}.")
    H, W = u.shape[2:]
    if boundary is Boundary.PERIODIC and k // 2 > min(H, W):
        raise ValueError(f"{where}: a periodic plane of {H} x {W} is too small for a {k} x {k} kernel.")
    x, y = centred_coordinates(H, W, 2 / max(H, W) if spacing is None else spacing, u)
    padded = pad(u, (k // 2,) * 4, mode=PADDING_MODES[boundary])
    out = conv2d(padded, weight[0], groups=groups)
    for (p, q), kernel in zip(exponents[1:], weight[1:], strict=True):
        out = out + (x**p * y**q) * conv2d(padded, kernel, groups=groups)
    return out
