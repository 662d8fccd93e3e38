r"""The advection-diffusion equation of the Global layer, solved for K steps. This file is the definition.

.. math::

    \partial_t h + \partial_x (u h) + \partial_y (v h)
        = \partial_x (D_x\, \partial_x h) + \partial_y (D_y\, \partial_y h) + f

The scheme is Du Fort-Frankel [KS22, Eq. (4)]: leapfrog in time, central differences in space, and the centre value
`2 h^k` of the second difference replaced by `h^{k+1} + h^{k-1}`. As in the paper, D is taken as locally constant.
With `A_x = u dt/dx` and `B_x = D_x dt/dx^2` one step reads

.. math::

    (1 + 2 \textstyle\sum B)\, h^{k+1} = (1 - 2 \sum B)\, h^{k-1} - 2\, dt\, (u_x + v_y)\, h^k + 2\, dt\, f
        + (2 B_x - A_x)\, h^k_{x+1} + (2 B_x + A_x)\, h^k_{x-1} + \text{the same in } y

x runs along the last dimension, y along the one before it, z along the one before that, all with the index: the
derivative of `3x` is +3. Nothing here mixes channels.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pdecnn.reference.boundary import Boundary, neighbours

MAX_STEPS = 10_000
"""K is at most this: more steps are a mistake, or a file that means harm."""

AXIS_NAMES = ("x", "y", "z")
VELOCITY_NAMES = ("u", "v", "w")
DIFFUSIVITY_NAMES = ("D_x", "D_y", "D_z")

Coefficient = Tensor | float


def advection_diffusion(
    h: Tensor,
    u: Coefficient,
    v: Coefficient,
    D_x: Coefficient,
    D_y: Coefficient,
    f: Tensor | None = None,
    *,
    h_prev: Tensor | None = None,
    K: int = 5,
    dt: float = 0.2,
    dx: float = 1.0,
    dy: float = 1.0,
    boundary: str | Boundary = "periodic",
) -> Tensor:
    """Solves the equation above for `K` steps and returns `h^K`.

    `pdecnn.functional.advection_diffusion` is the same function, computed by the fastest kernel of this machine.

    Args:
        h: The state `h^0`, of shape `(N, C, H, W)`.
        u: Velocity along x: a map of the shape of `h`, a tensor `(1, C, 1, 1)`, or a number.
        v: Velocity along y, given likewise.
        D_x: Diffusivity along x, given likewise. Must not be negative.
        D_y: Diffusivity along y, given likewise. Must not be negative.
        f: Source, of the shape of `h`; none by default.
        h_prev: The state `h^{-1}` before `h`; equal to `h` by default.
        K: Number of time steps, from 1 to 10,000.
        dt: Time step.
        dx: Distance of neighbouring columns.
        dy: Distance of neighbouring rows.
        boundary: `"periodic"`, `"neumann"` or `"dirichlet"`; see `Boundary`.

    Example:
        >>> h = torch.zeros(1, 1, 3, 3); h[0, 0, 1, 1] = 9.0
        >>> advection_diffusion(h, u=0.0, v=0.0, D_x=1.0, D_y=1.0, K=1)[0, 0].round()
        tensor([[0., 2., 0.],
                [2., 1., 2.],
                [0., 2., 0.]])
    """
    return solve(h, (u, v), (D_x, D_y), f, h_prev=h_prev, K=K, dt=dt, spacings=(dx, dy), boundary=boundary)


def advection_diffusion_1d(
    h: Tensor,
    u: Coefficient,
    D_x: Coefficient,
    f: Tensor | None = None,
    *,
    h_prev: Tensor | None = None,
    K: int = 5,
    dt: float = 0.2,
    dx: float = 1.0,
    boundary: str | Boundary = "periodic",
) -> Tensor:
    """The same scheme for signals `(N, C, W)`; coefficients are maps, `(1, C, 1)` or numbers."""
    return solve(h, (u,), (D_x,), f, h_prev=h_prev, K=K, dt=dt, spacings=(dx,), boundary=boundary)


def advection_diffusion_3d(
    h: Tensor,
    u: Coefficient,
    v: Coefficient,
    w: Coefficient,
    D_x: Coefficient,
    D_y: Coefficient,
    D_z: Coefficient,
    f: Tensor | None = None,
    *,
    h_prev: Tensor | None = None,
    K: int = 5,
    dt: float = 0.2,
    dx: float = 1.0,
    dy: float = 1.0,
    dz: float = 1.0,
    boundary: str | Boundary = "periodic",
) -> Tensor:
    """The same scheme for volumes `(N, C, D, H, W)`; `w` and `D_z` act along the third dimension from the end."""
    return solve(h, (u, v, w), (D_x, D_y, D_z), f, h_prev=h_prev, K=K, dt=dt, spacings=(dx, dy, dz), boundary=boundary)


def solve(
    h: Tensor,
    velocities: Sequence[Coefficient],
    diffusivities: Sequence[Coefficient],
    f: Tensor | None = None,
    *,
    h_prev: Tensor | None = None,
    K: int,
    dt: float,
    spacings: Sequence[float],
    boundary: str | Boundary,
) -> Tensor:
    """The scheme in as many dimensions as there are velocities: `velocities[0]` is along x (the last dimension)."""
    *_, last = trajectory(
        h, velocities, diffusivities, f, h_prev=h_prev, K=K, dt=dt, spacings=spacings, boundary=boundary
    )
    return last


def trajectory(
    h: Tensor,
    velocities: Sequence[Coefficient],
    diffusivities: Sequence[Coefficient],
    f: Tensor | None = None,
    *,
    h_prev: Tensor | None = None,
    K: int,
    dt: float,
    spacings: Sequence[float],
    boundary: str | Boundary,
) -> Iterator[Tensor]:
    """Yields the K+1 states `h^0, h^1, ..., h^K`."""
    boundary = check_arguments(h, velocities, diffusivities, f, h_prev, K, dt, spacings, boundary)
    axes = [-1 - i for i in range(len(spacings))]
    u = [torch.as_tensor(c, dtype=h.dtype, device=h.device).expand_as(h) for c in velocities]
    D = [torch.as_tensor(c, dtype=h.dtype, device=h.device).expand_as(h) for c in diffusivities]

    A = [c * (dt / dx) for c, dx in zip(u, spacings, strict=True)]
    B = [c * (dt / (dx * dx)) for c, dx in zip(D, spacings, strict=True)]
    two_B = 2 * sum(B)
    divergence = torch.zeros_like(h)
    for c, dx, axis in zip(u, spacings, axes, strict=True):
        c_plus, c_minus = neighbours(c, axis, boundary, boundary.velocity_parity)
        divergence = divergence + (c_plus - c_minus) / (2 * dx)

    h_prev = h if h_prev is None else h_prev
    yield h
    for _ in range(K):
        rhs = (1 - two_B) * h_prev - 2 * dt * divergence * h
        if f is not None:
            rhs = rhs + 2 * dt * f
        for A_i, B_i, axis in zip(A, B, axes, strict=True):
            h_plus, h_minus = neighbours(h, axis, boundary, boundary.state_parity)
            rhs = rhs + (2 * B_i - A_i) * h_plus + (2 * B_i + A_i) * h_minus
        h_prev, h = h, rhs / (1 + two_B)
        yield h


def check_arguments(
    h: Tensor,
    velocities: Sequence[Coefficient],
    diffusivities: Sequence[Coefficient],
    f: Tensor | None,
    h_prev: Tensor | None,
    K: int,
    dt: float,
    spacings: Sequence[float],
    boundary: str | Boundary,
) -> Boundary:
    """Raises a ValueError or TypeError that names the argument, what came and what is expected."""
    where = "advection_diffusion"
    d = len(spacings)
    if not isinstance(h, Tensor):
        raise TypeError(f"{where}: h must be a Tensor, got {type(h).__name__}.")
    if h.ndim != d + 2:
        expected = ("(N, C, W)", "(N, C, H, W)", "(N, C, D, H, W)")[d - 1]
        raise ValueError(f"{where}: expected h of shape {expected}, got {tuple(h.shape)}.")
    if not h.is_floating_point():
        raise TypeError(f"{where}: h must have a floating-point dtype, got {h.dtype}. Use h.float().")
    if 0 in h.shape[2:]:
        raise ValueError(f"{where}: h has an empty plane, shape {tuple(h.shape)}; only the batch may be empty.")
    for name, c in zip(VELOCITY_NAMES[:d], velocities, strict=True):
        _check_coefficient(where, name, c, h)
    for name, c in zip(DIFFUSIVITY_NAMES[:d], diffusivities, strict=True):
        _check_coefficient(where, name, c, h)
        if not isinstance(c, Tensor) and c < 0:
            raise ValueError(f"{where}: {name} (a diffusivity) must not be negative, got {name}={c}.")
    for name, q in (("f", f), ("h_prev", h_prev)):
        if q is not None:
            _check_tensor(where, name, q, h)
            if q.shape != h.shape:
                raise ValueError(f"{where}: expected {name} of the shape of h {tuple(h.shape)}, got {tuple(q.shape)}.")
    check_steps(where, K, TypeError)
    for name, value in zip(("dt", "dx", "dy", "dz"), (dt, *spacings), strict=False):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{where}: {name} must be a number, got {type(value).__name__}.")
        if not 0 < value < math.inf:  # math.isfinite has no graph
            raise ValueError(f"{where}: {name} must be positive and finite, got {name}={value}.")
    for name, value in zip(AXIS_NAMES, spacings, strict=False):
        square = value * value  # value**2 raises where it is beyond the range
        if square == 0 or not dt / square < math.inf:
            raise ValueError(f"{where}: d{name}={value} is too small: dt / d{name}^2 is beyond the range of a float.")
    return Boundary.parse(boundary, where)


def check_steps(where: str, K: object, wrong_kind: type[Exception] = ValueError) -> None:
    """Raises unless K is a number of steps: the one message of every entrance."""
    is_int = isinstance(K, int) and not isinstance(K, bool)
    if not (is_int and 1 <= K <= MAX_STEPS):  # type: ignore[operator]
        kind = ValueError if is_int else wrong_kind
        raise kind(f"{where}: K (number of time steps) must be an int from 1 to {MAX_STEPS:,}, got K={K!r}.")


def _check_coefficient(where: str, name: str, c: Coefficient, h: Tensor) -> None:
    if not isinstance(c, Tensor):
        if isinstance(c, bool) or not isinstance(c, (int, float)):
            raise TypeError(f"{where}: {name} must be a Tensor or a number, got {type(c).__name__}.")
        if not -math.inf < c < math.inf:
            raise ValueError(f"{where}: {name} must be finite, got {name}={c}.")
        return
    _check_tensor(where, name, c, h)
    per_channel = (1, h.shape[1]) + (1,) * (h.ndim - 2)
    if c.shape != h.shape and c.shape != per_channel and c.ndim != 0:
        raise ValueError(
            f"{where}: expected {name} of shape {tuple(h.shape)}, {per_channel} or a number, got {tuple(c.shape)}."
        )


def _check_tensor(where: str, name: str, q: Tensor, h: Tensor) -> None:
    if not isinstance(q, Tensor):
        raise TypeError(f"{where}: {name} must be a Tensor, got {type(q).__name__}.")
    if q.dtype != h.dtype:
        raise TypeError(f"{where}: {name} has dtype {q.dtype} but h has {h.dtype}. Use {name}.to(h.dtype).")
    if q.device != h.device:
        raise ValueError(f"{where}: {name} is on {q.device} but h is on {h.device}. Use {name}.to(h.device).")
