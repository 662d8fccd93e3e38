r"""Time steps of the reaction-diffusion equation of low-cost convolutional networks.

.. math:: \partial_t y = -K^T K\, y + \sigma(N(M y))

[RD, Eq. (8)] with a depth-wise (or block-circulant) K, a point-wise M, normalisation N and ReLU :math:`\sigma`. The
reaction `r = \sigma(N(M y))` is computed by the caller; here are the two ways to step the diffusion.

Stability of the linear part. With :math:`\lambda = |\hat k(\omega)|^2` the explicit step has the eigenvalues
:math:`1 - h \lambda`: it does not expand iff :math:`h \le 2 / \max\lambda`, and no mode changes sign iff
:math:`h \le 1 / \max\lambda`. The implicit step has :math:`1 / (1 + h \lambda) \in (0, 1]` for every h > 0. (The paper
says strictly below 1 for all weights; it is exactly 1 whenever the symbol has a zero on the grid, as for every
stencil that sums to zero.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pdecnn.reference.boundary import Boundary
from pdecnn.reference.circulant import circulant_symbol
from pdecnn.reference.depthwise import check_stencil, diffusion
from pdecnn.reference.spectral import diagonalisable, spectral_filter, symbol
from pdecnn.reference.time_step import check_time_step


def explicit_diffusion(y: Tensor, k: Tensor, h: float, boundary: str | Boundary = "periodic") -> Tensor:
    """`(I - h K^T K) y`: one forward-Euler step of the diffusion."""
    check_time_step(h, "explicit_diffusion")
    return y - h * diffusion(y, k, boundary)


def implicit_diffusion(v: Tensor, k: Tensor, h: float, boundary: str | Boundary = "periodic") -> Tensor:
    """`(I + h K^T K)^{-1} v`: one backward-Euler step, which couples all pixels of a channel.

    Example:
        >>> import torch
        >>> v = torch.tensor([[[4.0, 0.0, 0.0, 0.0]]])
        >>> implicit_diffusion(v, torch.tensor([[0.0, 2.0, 0.0]]), h=1.0)  # K = 2 I, so v / (1 + 4)
        tensor([[[0.8000, 0.0000, 0.0000, 0.0000]]])
    """
    check_time_step(h, "implicit_diffusion")
    check_stencil(v, k, boundary, "implicit_diffusion")
    boundary = diagonalisable(boundary, "implicit_diffusion")
    return spectral_filter(v, 1 / (1 + h * symbol(k, v.shape[2:], boundary)), boundary)


def explicit_step(y: Tensor, k: Tensor, r: Tensor, h: float, boundary: str | Boundary = "periodic") -> Tensor:
    """`y + h (-K^T K y + r)` [RD, Eq. (9)]."""
    return explicit_diffusion(y, k, h, boundary) + h * r


def implicit_step(y: Tensor, k: Tensor, r: Tensor, h: float, boundary: str | Boundary = "periodic") -> Tensor:
    """`(I + h K^T K)^{-1} (y + h r)` [RD, Eq. (11)]."""
    return implicit_diffusion(y + h * r, k, h, boundary)


@dataclass(frozen=True)
class DiffusionStability:
    """A time step against the bounds of a diffusion.

    Attributes:
        h: The time step.
        max_symbol: The largest eigenvalue of `K^T K`, over all channels and frequencies.
        min_symbol: The smallest one.
        implicit: Whether the step is implicit.
    """

    h: float
    max_symbol: float
    min_symbol: float
    implicit: bool

    @property
    def h_max(self) -> float:
        """The largest `h` that does not expand: `2 / max_symbol`, infinite for the implicit step."""
        return float("inf") if self.implicit or self.max_symbol == 0 else 2 / self.max_symbol

    @property
    def h_monotone(self) -> float:
        """The largest `h` for which no mode changes its sign: half of `h_max`."""
        return self.h_max / 2

    @property
    def spectral_radius(self) -> float:
        """The largest factor by which the linear part of one step multiplies a mode."""
        if self.implicit:
            return 1 / (1 + self.h * self.min_symbol)
        return max(abs(1 - self.h * self.min_symbol), abs(1 - self.h * self.max_symbol))

    @property
    def stable(self) -> bool:
        """Whether `h <= h_max`."""
        return self.h <= self.h_max


def stability(
    k: Tensor, h: float, *, implicit: bool, size: Sequence[int] | None = None, circulant: bool = False
) -> DiffusionStability:
    """`h` against its bound for the stencils `k`, `(C, m, ...)`, on the periodic grid of `size`.

    Without a size the symbol is sampled on 64 frequencies per axis (16 in three dimensions), which stands for every
    grid and, as zeros beyond the border only lower the largest eigenvalue, for the zero-padded operator too.
    """
    check_time_step(h, "stability")
    d = k.ndim - 1
    size = size or [64 if d < 3 else 16] * d
    s = (circulant_symbol if circulant else symbol)(k.detach().double(), size)
    return DiffusionStability(h=h, max_symbol=float(s.max()), min_symbol=float(s.min()), implicit=implicit)
