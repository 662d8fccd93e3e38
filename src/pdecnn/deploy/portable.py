"""The operators of pdecnn in operators that every runtime has: slices, concatenations, products, convolutions.

`TABLE` maps each operator to its portable form. `InPlaceOf` uses a table while it is entered, and only then: nothing is
switched on globally, and a network traced inside it holds no operator of ours.

Forms, all equal to the operators up to rounding:

- a periodic neighbour is a slice of the field beside itself, `[q, q]`; no `roll`,
- the coefficients of the K steps are computed once, with one reciprocal,
- a spectral filter is a product with the Hartley (or cosine) matrix of each axis; no Fourier transform.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pdecnn import reference
from pdecnn.kernels.advection_diffusion.op import Problem
from pdecnn.kernels.global_layer.arguments import ACTIVATIONS, Steps
from pdecnn.reference.boundary import Boundary, neighbours
from pdecnn.reference.depthwise import CONV, extend
from pdecnn.reference.spectral import along, hartley_matrix, negated

_OPS = torch.ops.pdecnn


class Planes:
    """Maps `(N, C, H, W)` as they are, with a periodic neighbour in three nodes, not six."""

    def __init__(self, h: Tensor, boundary: str) -> None:
        self.boundary = Boundary(boundary)

    def hold(self, q: Tensor) -> Tensor:
        """A map, or one number per channel or for all, as the steps take it."""
        return q

    def release(self, q: Tensor) -> Tensor:
        """Back to `(N, C, H, W)`."""
        return q

    def per_channel(self, q: Tensor) -> Tensor:
        """Numbers `(C,)` to multiply a held map with."""
        return q.view(-1, 1, 1)

    def neighbours(self, q: Tensor, axis: int, parity: int) -> tuple[Tensor, Tensor]:
        """`(q[i+1], q[i-1])` along `axis`, -1 for x and -2 for y, as `reference.boundary.neighbours`."""
        n = q.shape[axis]
        if self.boundary is not Boundary.PERIODIC:
            return neighbours(q, axis, self.boundary, parity)
        if n == 1:
            return q, q
        twice = torch.cat([q, q], axis)
        return twice.narrow(axis, 1, n), twice.narrow(axis, n - 1, n)

    def inflow(self, a: Tensor, axis: int) -> Tensor | None:
        """`a[i-1] - a[i+1]`: minus the divergence. One number has none inside a periodic border."""
        if self.boundary is Boundary.PERIODIC and (a.ndim == 0 or a.shape[axis] == 1):
            return None
        after, before = self.neighbours(a, axis, self.boundary.velocity_parity)
        return before - after


def solve(
    grid: Planes,
    h: Tensor,
    h_prev: Tensor,
    a: tuple[Tensor, Tensor],
    b: tuple[Tensor, Tensor],
    f: Tensor | None,
    *,
    K: int,
    dt: float,
) -> Tensor:
    """K steps on held maps, as a sum of seven products each.

    With `a = A / 2` and `b = B` in the letters of `reference.advection_diffusion`, `i = 1 / (1/2 + b_x + b_y)` and `g`
    minus the divergence of `a`, a step is

        h[k+1] = i ((b_x - a_x) h_right + (b_x + a_x) h_left + (b_y - a_y) h_down + (b_y + a_y) h_up + g h[k] + dt f)
                 + (i - 1) h[k-1]
    """
    (a_x, a_y), (b_x, b_y) = a, b
    i = (b_x + b_y + 0.5).reciprocal()
    right, left, down, up = (q * i for q in (b_x - a_x, b_x + a_x, b_y - a_y, b_y + a_y))
    flows = [q for q in (grid.inflow(a_x, -1), grid.inflow(a_y, -2)) if q is not None]
    here = torch.zeros((), dtype=h.dtype) if not flows else reduce(torch.add, flows) * i
    before = i - 1
    source = None if f is None else f * (i * dt)
    parity = grid.boundary.state_parity
    for _ in range(K):
        h_right, h_left = grid.neighbours(h, -1, parity)
        h_down, h_up = grid.neighbours(h, -2, parity)
        h_next = right * h_right + left * h_left + down * h_down + up * h_up
        h_next = h_next + (before + here) * h if h_prev is h else h_next + before * h_prev + here * h
        h_prev, h = h, h_next if source is None else h_next + source
    return h


def _scales(dt: float, dx: float, dy: float) -> tuple[float, float, float, float]:
    """What makes `a_x`, `a_y`, `b_x`, `b_y` of the velocities and diffusivities."""
    return dt / (2 * dx), dt / (2 * dy), dt / dx**2, dt / dy**2


def advection_diffusion(*arguments: Any, grid_of: type[Planes] = Planes) -> Tensor:
    """K steps of `functional.advection_diffusion`."""
    h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary = Problem(*arguments)
    if boundary != "periodic":  # the border makes velocities vary
        u, v, grid_of = u.expand_as(h), v.expand_as(h), Planes
    grid, scales = grid_of(h, boundary), _scales(dt, dx, dy)
    a_x, a_y, b_x, b_y = (grid.hold(q * scale) for q, scale in zip((u, v, D_x, D_y), scales, strict=True))
    state = grid.hold(h)
    previous = state if h_prev is None or h_prev is h else grid.hold(h_prev)
    source = None if f is None else state if f is h else previous if f is h_prev else grid.hold(f)
    return grid.release(solve(grid, state, previous, (a_x, a_y), (b_x, b_y), source, K=K, dt=dt))


def global_layer(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor,
    residual: bool, output_act: str, *options: Any, grid_of: type[Planes] = Planes,
) -> Tensor:  # fmt: skip
    """`pdecnn::global_layer`, a whole Global layer, operator by operator."""
    steps = Steps(*options)
    C, pad = h.shape[1], weight.shape[-1] // 2
    grid = (grid_of if steps.boundary == "periodic" else Planes)(h, steps.boundary)
    scales, act = _scales(steps.dt, steps.dx, steps.dy), ACTIVATIONS[steps.coefficient_act]
    learned = []
    for w, b, s in zip(weight, bias, scales, strict=False):  # two of them if D is a number
        inside, outside = (
            (s, 1.0) if steps.coefficient_act in ("relu", "identity") else (1.0, s)
        )  # relu(s q) = s relu(q)
        q = act(functional.conv2d(h, w.unsqueeze(1) * inside, b * inside, padding=pad, groups=C))
        learned.append(grid.hold(q if outside == 1 else q * outside))
    a_x, a_y = (q if steps.flow_sign > 0 else -q for q in learned[:2])
    given = zip((steps.D_x, steps.D_y), scales[2:], strict=True)
    b_x, b_y = learned[2:] or [torch.full((), D * s, dtype=h.dtype) for D, s in given]
    state = grid.hold(h)
    held = state if x is h else grid.hold(x)
    previous, source = held if steps.previous_is_input else state, held if steps.has_source else None
    out = solve(grid, state, previous, (a_x, a_y), (b_x, b_y), source, K=steps.K, dt=steps.dt)
    out = ACTIVATIONS[output_act](out * grid.per_channel(scale) + grid.per_channel(shift))
    return grid.release(out + held if residual else out)


def depthwise(y: Tensor, k: Tensor, boundary: str) -> Tensor:
    """A stencil per channel: a convolution, with the border laid around the image first unless it is zeros."""
    where, d = Boundary(boundary), k.ndim - 1
    radius = [m // 2 for m in k.shape[1:]]
    weight = k.to(y.dtype).unsqueeze(1)
    if where is Boundary.DIRICHLET:
        return CONV[d](y, weight, padding=radius, groups=k.shape[0])
    if where is Boundary.PERIODIC and all(r <= n for r, n in zip(radius, y.shape[2:], strict=True)):
        for axis, r in enumerate(radius, start=2):
            n = y.shape[axis]
            y = torch.cat([y.narrow(axis, n - r, r), y, y.narrow(axis, 0, r)], axis) if r else y
    else:
        y = extend(y, radius, where)
    return CONV[d](y, weight, groups=k.shape[0])


def spectral_filter(v: Tensor, g: Tensor, boundary: str) -> Tensor:
    r"""`g` in the basis of the boundary by real matrices alone, in any number of dimensions.

    Neumann: by definition. Periodic: with the Hartley matrices `H = cos + sin`, `H' = cos - sin` of each axis and
    `T = H v`, the filter is the sum over the sets S of axes with an even number of members of :math:`(-1)^{|S|/2}`
    times the inverse transform of `g_S T`, where `g_S` is the part of g that is odd along S and even along the rest,
    and the axes of S use `H'`.
    """
    axes = range(2, v.ndim)
    if boundary == "neumann":
        return reference.spectral_filter(v, g, boundary)
    hartley = [hartley_matrix(v.shape[axis], v.dtype) for axis in axes]
    T = _transform(v, hartley)
    total: Tensor | None = None
    for size in range(0, len(axes) + 1, 2):
        for odd in itertools.combinations(range(len(axes)), size):
            part = _transform(_parity(g, odd) * T, [negated(H, 0) if i in odd else H for i, H in enumerate(hartley)])
            part = part if size % 4 == 0 else -part
            total = part if total is None else total + part
    assert total is not None
    return total


def _transform(v: Tensor, matrices: list[Tensor]) -> Tensor:
    """The symmetric matrix of each axis applied along it; the last two axes need no transposition."""
    for i, M in enumerate(matrices):
        axis = 2 + i - v.ndim  # from the end
        v = v @ M if axis == -1 else M @ v if axis == -2 else along(v, M, axis)
    return v


def _parity(g: Tensor, odd: Iterable[int]) -> Tensor:
    """The part of `g`, `(C, ...)`, that is odd along the axes `odd` of its grid and even along the others."""
    for i in range(g.ndim - 1):
        mirrored = negated(g, i + 1)
        g = (g - mirrored) / 2 if i in odd else (g + mirrored) / 2
    return g


def shared_expand_product(u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int) -> Tensor:
    """`c (scale D u + shift)` with the affine map in the convolution's weight and bias."""
    C = u.shape[1]
    weight = stencils.repeat(C, 1, 1, 1) * scale.view(-1, 1, 1, 1)
    return c * functional.conv2d(u, weight, shift, stride=stride, padding=1, groups=C)


Table = Mapping[Any, Callable[..., Any]]

TABLE: Table = {
    _OPS.advection_diffusion.default: advection_diffusion,
    _OPS.global_layer.default: global_layer,
    _OPS.depthwise.default: depthwise,
    _OPS.spectral_filter.default: spectral_filter,
    _OPS.shared_expand.default: reference.shared_expand,  # a grouped convolution
    _OPS.shared_expand_product.default: shared_expand_product,
}


class InPlaceOf(TorchFunctionMode):
    """While entered, the operators in `table` are computed by the functions that it gives.

    Example:
        >>> from pdecnn.deploy.portable import TABLE
        >>> from pdecnn.functional import depthwise as stencil
        >>> y, k = torch.rand(1, 2, 4, 4), torch.rand(2, 3, 3)
        >>> with InPlaceOf(TABLE):
        ...     z = stencil(y, k)
        >>> torch.allclose(z, stencil(y, k))
        True
    """

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = {_packet(op): form for op, form in table.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What the table gives for `func`, else `func` itself."""
        form = self.table.get(_packet(func))
        return (func if form is None else form)(*args, **(kwargs or {}))


def _packet(func: Any) -> Any:
    """An operator under one key, whether it was called as a packet or as its default overload."""
    return getattr(func, "overloadpacket", func)


class WithTable(nn.Module):
    """A module that runs inside `InPlaceOf(table)`."""

    def __init__(self, model: nn.Module, table: Table) -> None:
        super().__init__()
        self.model, self.table = model, table

    def forward(self, *inputs: Tensor) -> Any:
        """The model's output."""
        with InPlaceOf(self.table):
            return self.model(*inputs)
