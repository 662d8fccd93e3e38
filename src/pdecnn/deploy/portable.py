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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pdecnn.kernels.global_layer.op import ACTIVATIONS
from pdecnn.reference.boundary import Boundary, neighbours
from pdecnn.reference.depthwise import CONV, extend
from pdecnn.reference.spectral import along, cosine_matrix, hartley_matrix, negated

_OPS = torch.ops.pdecnn


def shifted(q: Tensor, axis: int, boundary: Boundary, parity: int) -> tuple[Tensor, Tensor]:
    """`(q[i+1], q[i-1])` along `axis`, as `functional.boundary.neighbours`; periodic ones in three nodes, not six."""
    n = q.shape[axis]
    if boundary is not Boundary.PERIODIC:
        return neighbours(q, axis, boundary, parity)
    if n == 1:
        return q, q
    twice = torch.cat([q, q], axis)
    return twice.narrow(axis, 1, n), twice.narrow(axis, n - 1, n)


def advection_diffusion(
    h: Tensor,
    h_prev: Tensor | None,
    u: Tensor,
    v: Tensor,
    D_x: Tensor,
    D_y: Tensor,
    f: Tensor | None,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    boundary: str,
) -> Tensor:
    """K steps of `functional.advection_diffusion`, as a sum of seven products each."""
    where = Boundary(boundary)
    A_x, A_y = u * (dt / dx), v * (dt / dy)
    B_x, B_y = D_x * (2 * dt / dx**2), D_y * (2 * dt / dy**2)  # 2 B in the scheme's letters
    two_B = B_x + B_y
    inverse = (1 + two_B).reciprocal()
    growth = _inflow(A_x, -1, where) + _inflow(A_y, -2, where)
    steps = [q * inverse for q in (B_x - A_x, B_x + A_x, B_y - A_y, B_y + A_y, 1 - two_B, growth)]
    right, left, down, up, previous, here = steps
    source = None if f is None else f * (inverse * (2 * dt))
    h_prev = h if h_prev is None else h_prev
    for _ in range(K):
        h_right, h_left = shifted(h, -1, where, where.state_parity)
        h_down, h_up = shifted(h, -2, where, where.state_parity)
        h_next = right * h_right + left * h_left + down * h_down + up * h_up + previous * h_prev + here * h
        h_prev, h = h, h_next if source is None else h_next + source
    return h


def _inflow(A: Tensor, axis: int, boundary: Boundary) -> Tensor:
    """`A[i-1] - A[i+1]`: minus the divergence, times `2 dt`. One number per channel has none."""
    if boundary is Boundary.PERIODIC and (A.ndim == 0 or A.shape[axis] == 1):
        return torch.zeros_like(A)
    after, before = shifted(A, axis, boundary, boundary.velocity_parity)
    return before - after


def advection_diffusion_maps(h: Tensor, h_prev: Tensor | None, *others: Any) -> Tensor:
    """`advection_diffusion` of velocities that are expanded to maps where a border makes them vary."""
    u, v, D_x, D_y, f, K, dt, dx, dy, boundary = others
    if boundary != "periodic":
        u, v = u.expand_as(h), v.expand_as(h)
    return advection_diffusion(h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary)


def global_layer(
    h: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    D_x: float,
    D_y: float,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    boundary: str,
    flow_sign: int,
    previous_is_input: bool,
    coefficient_act: str,
    output_act: str,
) -> Tensor:
    """`pdecnn::global_layer`, a whole Global layer, operator by operator."""
    C, pad = h.shape[1], weight.shape[-1] // 2
    maps = [
        ACTIVATIONS[coefficient_act](functional.conv2d(h, weight[i].unsqueeze(1), bias[i], padding=pad, groups=C))
        for i in range(weight.shape[0])
    ]
    u, v = (q if flow_sign > 0 else -q for q in maps[:2])
    D = maps[2:] if len(maps) == 4 else [torch.full((), D, dtype=h.dtype) for D in (D_x, D_y)]
    h_prev = x if previous_is_input else None
    h = advection_diffusion_maps(h, h_prev, u, v, *D, x, K, dt, dx, dy, boundary)
    return ACTIVATIONS[output_act](h * scale.view(-1, 1, 1) + shift.view(-1, 1, 1))


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

    Periodic: with the Hartley matrices `H = cos + sin`, `H' = cos - sin` of each axis and `T = H v`, the filter is the
    sum over the sets S of axes with an even number of members of :math:`(-1)^{|S|/2}` times the inverse transform of
    `g_S T`, where `g_S` is the part of g that is odd along S and even along the rest, and the axes of S use `H'`.
    """
    axes = range(2, v.ndim)
    if boundary == "neumann":
        cosines = [cosine_matrix(v.shape[axis], v.dtype) for axis in axes]
        for axis, D in zip(axes, cosines, strict=True):
            v = along(v, D, axis)
        v = g * v
        for axis, D in zip(axes, cosines, strict=True):
            v = along(v, D.T, axis)
        return v
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


def shared_expand(u: Tensor, stencils: Tensor, stride: int) -> Tensor:
    """Stencils that all channels share, as a grouped convolution."""
    C = u.shape[1]
    return functional.conv2d(u, stencils.repeat(C, 1, 1, 1), stride=stride, padding=1, groups=C)


def shared_expand_product(u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int) -> Tensor:
    """`c (scale D u + shift)` with the affine map in the convolution's weight and bias."""
    C = u.shape[1]
    weight = stencils.repeat(C, 1, 1, 1) * scale.view(-1, 1, 1, 1)
    return c * functional.conv2d(u, weight, shift, stride=stride, padding=1, groups=C)


Table = Mapping[Any, Callable[..., Any]]

TABLE: Table = {
    _OPS.advection_diffusion.default: advection_diffusion_maps,
    _OPS.global_layer.default: global_layer,
    _OPS.depthwise.default: depthwise,
    _OPS.spectral_filter.default: spectral_filter,
    _OPS.shared_expand.default: shared_expand,
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
