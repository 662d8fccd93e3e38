r"""Nonlinearities that act on the length of a pixel's feature vector and leave its direction alone.

Both commute with every orthogonal mixing of the channels: `ball(Q h) = Q ball(h)` for `Q` in O(C). `|h|` is the
Euclidean norm over the channels of one pixel.
"""

import torch
from torch import Tensor

MIN_SQUARED_NORM = 1e-12


def hardball(h: Tensor, R: float) -> Tensor:
    """Projects every pixel onto the ball of radius `R`: `h` inside it, `R h / |h|` outside.

    The squared norm is clamped before the square root, so that the gradient at `h = 0` is the identity and not NaN.

    Shape:
        `(N, C, ...) -> (N, C, ...)`.

    Example:
        >>> hardball(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), R=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    check_radius("hardball", R)
    norm = squared_norm(h).clamp_min(MIN_SQUARED_NORM).sqrt()
    return h * (R / norm).clamp_max(1.0).to(h.dtype)


def softball(h: Tensor, R: float) -> Tensor:
    """Maps space smoothly into the open ball of radius `R`: `h / sqrt(1 + |h|^2 / R^2)`.

    Shape:
        `(N, C, ...) -> (N, C, ...)`.

    Example:
        >>> softball(torch.tensor([[3.0, 4.0]]), R=5.0) * 2**0.5
        tensor([[3.0000, 4.0000]])
    """
    check_radius("softball", R)
    return h * torch.rsqrt(1.0 + squared_norm(h) / R**2).to(h.dtype)


def squared_norm(h: Tensor) -> Tensor:
    """`|h|^2` over the channels, kept as a dimension; summed in float32 or wider, as squares overflow float16."""
    return h.to(torch.promote_types(h.dtype, torch.float32)).square().sum(1, keepdim=True)


def check_radius(where: str, R: float) -> None:
    """Raises a ValueError unless the radius is positive."""
    if not R > 0:
        raise ValueError(f"{where}: R (the radius of the ball) must be positive, got R={R}.")
