"""K steps of advection-diffusion, fused: `pdecnn.reference.advection_diffusion` in one pass over memory."""

from typing import cast

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion import op as op  # registers the operator
from pdecnn.kernels.library import in_transform
from pdecnn.reference import advection_diffusion as _reference
from pdecnn.reference import advection_diffusion_1d as _reference_1d
from pdecnn.reference.advection_diffusion import Coefficient, check_arguments
from pdecnn.reference.advection_diffusion import advection_diffusion_3d as advection_diffusion_3d
from pdecnn.reference.boundary import Boundary

_solve = torch.ops.pdecnn.advection_diffusion.default


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
    """Solves `K` steps of the advection-diffusion equation and returns `h^K`.

    The same function as `pdecnn.reference.advection_diffusion`, which describes it, by the fastest kernel of the
    device: states stay in cache for all K steps, and the backward pass saves the inputs alone, whatever K is. Under
    the transforms of `torch.func` (`jvp`, `grad`, `vmap`, `hessian`) and in forward mode it is the reference itself.

    Example:
        >>> h = torch.rand(8, 16, 32, 32, requires_grad=True)
        >>> advection_diffusion(h, u=0.5, v=0.0, D_x=1.0, D_y=1.0, f=h, K=5).sum().backward()
    """
    if in_transform() or torch.onnx.is_in_onnx_export():  # there its operators are what is known
        return _reference(h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=dt, dx=dx, dy=dy, boundary=boundary)
    where = check_arguments(h, (u, v), (D_x, D_y), f, h_prev, K, dt, (dx, dy), boundary)
    u, v, D_x, D_y = (c if isinstance(c, Tensor) else h.new_full((), c) for c in (u, v, D_x, D_y))
    return cast(Tensor, _solve(h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, where.value))


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
    """`pdecnn.reference.advection_diffusion_1d` by the two-dimensional kernel: a signal is an image of one row."""
    if in_transform() or torch.onnx.is_in_onnx_export():
        return _reference_1d(h, u, D_x, f, h_prev=h_prev, K=K, dt=dt, dx=dx, boundary=boundary)
    where = check_arguments(h, (u,), (D_x,), f, h_prev, K, dt, (dx,), boundary)
    zero = h.new_zeros(())
    u, D_x = (c if isinstance(c, Tensor) else h.new_full((), c) for c in (u, D_x))
    # no flow and no diffusion along y: the single row has no neighbours
    inputs = (h, h_prev, u, zero, D_x, zero, f)
    rows = (q.unsqueeze(2) if q is not None and q.ndim == 3 else q for q in inputs)
    return cast(Tensor, _solve(*rows, K, dt, dx, 1.0, where.value)).squeeze(2)
