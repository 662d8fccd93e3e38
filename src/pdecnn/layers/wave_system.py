r"""The wave equation as a first-order system of three fields, the plainest symmetric hyperbolic system.

.. math:: \partial_t p = c\,(\partial_x q + \partial_y r), \qquad \partial_t q = c\,\partial_x p, \qquad
    \partial_t r = c\,\partial_y p

Eliminating q and r gives :math:`\partial_t^2 p = c^2 \Delta p`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.reference.boundary import Boundary, neighbours


class WaveSystem(nn.Module):
    r"""K symplectic Euler steps of the system above: q and r are advanced with the new p.

    With :math:`|c|\,dt \le 1` on the unit grid the energy :math:`\sum p^2 + q^2 + r^2` stays bounded for any number of
    steps; the speed of each channel is a parameter and is kept in that range.

    Args:
        channels: Channels C of each field.
        K: Number of steps.
        dt: Time step.
        boundary: `"periodic"` or `"neumann"` (a wall: nothing flows through it).
        dd: `device` and `dtype` of the speeds.

    Shape:
        `(N, 3 C, H, W) -> (N, 3 C, H, W)`: the C maps of p, then those of q, then those of r.

    Example:
        >>> WaveSystem(4)(torch.randn(2, 12, 8, 8)).shape
        torch.Size([2, 12, 8, 8])
    """

    def __init__(
        self, channels: int, *, K: int = 1, dt: float = 0.5, boundary: str | Boundary = "periodic", **dd: Any
    ) -> None:
        super().__init__()
        self.boundary = Boundary.parse(boundary, "WaveSystem")
        if self.boundary is Boundary.DIRICHLET:
            raise ValueError("WaveSystem: boundary must be 'periodic' or 'neumann', got 'dirichlet'.")
        if K < 1 or not dt > 0:
            raise ValueError(f"WaveSystem: K must be at least 1 and dt positive, got K={K}, dt={dt}.")
        self.channels, self.K, self.dt = channels, K, dt
        self.speed = nn.Parameter(torch.ones(channels, **dd))

    def forward(self, w: Tensor) -> Tensor:
        """The fields after K steps."""
        if w.ndim != 4 or w.shape[1] != 3 * self.channels:
            raise ValueError(
                f"WaveSystem: expected fields of shape (N, {3 * self.channels}, H, W), got {tuple(w.shape)}."
            )
        p, q, r = w.chunk(3, 1)
        s = (self.speed * self.dt).clamp(-1.0, 1.0).view(-1, 1, 1)
        for _ in range(self.K):
            p = p + s * (self._difference(q, -1, flow=True) + self._difference(r, -2, flow=True))
            q, r = q + s * self._difference(p, -1), r + s * self._difference(p, -2)
        return torch.cat([p, q, r], 1)

    def _difference(self, field: Tensor, axis: int, *, flow: bool = False) -> Tensor:
        """The central difference; the two kinds are each other's negative adjoint, which keeps the energy."""
        wall = self.boundary
        plus, minus = neighbours(field, axis, wall, wall.velocity_parity if flow else wall.state_parity)
        return (plus - minus) / 2

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.channels}, K={self.K}, dt={self.dt:g}, boundary={self.boundary.value!r}"
