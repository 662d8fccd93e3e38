r"""How near a solve is to instability, from the coefficients that it is given.

With frozen coefficients and `h ~ g^k e^{i(θ_x x + θ_y y)}` the scheme's growth factor g solves
`(1 + s) g² - 2 (s p - i q) g - (1 - s) = 0`, where `s = 2 (B_x + B_y)`,
`p = (B_x cos θ_x + B_y cos θ_y) / (B_x + B_y)` and `q = A_x sin θ_x + A_y sin θ_y`. The Schur-Cohn test gives
`|g| <= 1` exactly when `p² + q² <= 1`, and this holds for all θ exactly when

.. math:: V = \left(\frac{A_x^2}{B_x} + \frac{A_y^2}{B_y}\right) (B_x + B_y) \le 1.

Without diffusion (B = 0) the condition is that of leapfrog, `|A_x| + |A_y| <= 1`; with `B_x = B_y` it is
`A_x² + A_y² <= 1/2`, for which `|A_x| + |A_y| <= 0.7` is enough. An axis with flow but no diffusion, next to an axis
with diffusion, is always (weakly) unstable.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.reference.advection_diffusion import Coefficient


@dataclass(frozen=True)
class AdvectionStability:
    """What `GlobalLayer.stability` reports, over all pixels, channels and images of a batch.

    Attributes:
        cfl: The largest `|A_x| + |A_y|`, the Courant number, where `A_x = u dt / dx`.
        fraction_above_1: The share of elements where `|A_x| + |A_y| > 1`.
        von_neumann_fraction: The share of elements where V > 1 (see this file's head), that is, whose coefficients,
            if they were the same everywhere, would let some wave grow.
        max_velocity: The largest `|u|` or `|v|`.
        max_diffusivity: The largest `D_x` or `D_y`, with the numerical diffusion of an upwind layer.
        min_diffusivity: The smallest.
    """

    cfl: float
    fraction_above_1: float
    von_neumann_fraction: float
    max_velocity: float
    max_diffusivity: float
    min_diffusivity: float


@torch.no_grad()
def measure_stability(
    h: Tensor, u: Coefficient, v: Coefficient, D_x: Coefficient, D_y: Coefficient, *, dt: float, dx: float, dy: float
) -> AdvectionStability:
    """The report for a solve that starts at `h` with these coefficients.

    Example:
        >>> measure_stability(torch.zeros(1, 1, 4, 4), 1.0, 2.0, 1.0, 1.0, dt=0.2, dx=1, dy=1).cfl
        0.6
    """
    u, v, D_x, D_y = (torch.as_tensor(c, device=h.device).double().expand(h.shape) for c in (u, v, D_x, D_y))
    A_x, A_y = u * (dt / dx), v * (dt / dy)
    B_x, B_y = D_x * (dt / dx**2), D_y * (dt / dy**2)
    cfl = A_x.abs() + A_y.abs()
    return AdvectionStability(
        cfl=_rounded(cfl.max()),
        fraction_above_1=_rounded((cfl > 1).double().mean()),
        von_neumann_fraction=_rounded((von_neumann_number(A_x, A_y, B_x, B_y) > 1).double().mean()),
        max_velocity=_rounded(torch.maximum(u.abs(), v.abs()).max()),
        max_diffusivity=_rounded(torch.maximum(D_x, D_y).max()),
        min_diffusivity=_rounded(torch.minimum(D_x, D_y).min()),
    )


def von_neumann_number(A_x: Tensor, A_y: Tensor, B_x: Tensor, B_y: Tensor) -> Tensor:
    """V of this file's head; `(|A_x| + |A_y|)²` where there is no diffusion. At most 1 means that no wave grows."""
    quotients = [torch.where(A == 0, 0.0, A**2 / B) for A, B in ((A_x, B_x), (A_y, B_y))]  # 0/0 has no flow: 0
    total = B_x + B_y
    return torch.where(total == 0, (A_x.abs() + A_y.abs()) ** 2, sum(quotients) * total)


def _rounded(q: Tensor) -> float:
    return float(f"{q.item():.7g}")
