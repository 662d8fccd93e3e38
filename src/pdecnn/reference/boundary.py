"""What a field is beyond the border of its grid: one enum, one function."""

from enum import Enum

import torch
from torch import Tensor


class Boundary(str, Enum):
    """The three boundary conditions.

    - `PERIODIC`: opposite borders are neighbours (the choice of the papers).
    - `NEUMANN`: nothing crosses the border. The state is mirrored (`h[-1] = h[0]`), the velocity that points through
      the border changes sign with the mirror (`u[-1] = -u[0]`), so that the flux there is zero and mass is conserved.
    - `DIRICHLET`: the state is zero beyond the border; velocities keep their border value (`u[-1] = u[0]`).
    """

    PERIODIC = "periodic"
    NEUMANN = "neumann"
    DIRICHLET = "dirichlet"

    @classmethod
    def parse(cls, value: "str | Boundary", where: str) -> "Boundary":
        """The member named `value`, or a ValueError that lists the names."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(repr(b.value) for b in cls)
            raise ValueError(f"{where}: boundary must be one of {names}, got {value!r}.") from None

    @property
    def state_parity(self) -> int:
        """The sign of a state's mirror image, `h[-1] = parity * h[0]` (0 if the state vanishes outside)."""
        return 0 if self is Boundary.DIRICHLET else 1

    @property
    def velocity_parity(self) -> int:
        """The sign of the mirror image of the velocity component that is normal to the border."""
        return -1 if self is Boundary.NEUMANN else 1


def neighbours(q: Tensor, axis: int, boundary: Boundary, parity: int = 1) -> tuple[Tensor, Tensor]:
    """Returns `(q[i+1], q[i-1])` along `axis` for every index `i`.

    Beyond a border that is not periodic stands `parity` times the value at the border.
    """
    n = q.shape[axis]
    first, last = q.narrow(axis, 0, 1), q.narrow(axis, n - 1, 1)
    if boundary is Boundary.PERIODIC:
        before, after = last, first
    elif parity == 0:
        before, after = torch.zeros_like(first), torch.zeros_like(last)
    else:
        before, after = parity * first, parity * last
    plus = torch.cat([q.narrow(axis, 1, n - 1), after], axis)
    minus = torch.cat([before, q.narrow(axis, 0, n - 1)], axis)
    return plus, minus
