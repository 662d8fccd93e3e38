"""K steps of advection-diffusion, fused: `pdecnn.reference.advection_diffusion` in one pass over memory."""

from typing import cast

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import Problem
from pdecnn.kernels.library import in_transform
from pdecnn.reference import advection_diffusion as _reference
from pdecnn.reference import advection_diffusion_1d as _reference_1d
from pdecnn.reference import advection_diffusion_3d as _reference_3d
from pdecnn.reference.advection_diffusion import Coefficient, check_arguments
from pdecnn.reference.boundary import Boundary

_solve = torch.ops.pdecnn.advection_diffusion.default
_solve_3d = torch.ops.pdecnn.advection_diffusion_3d.default


def _in_onnx_export() -> bool:
    """Whether `torch.onnx.export` goes on, which knows the reference's operators; it takes long to ask torch that."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return (tracing or torch.compiler.is_compiling()) and torch.onnx.is_in_onnx_export()


def _are_tensors(*values: object) -> bool:
    return all(isinstance(value, Tensor) for value in values)


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
    if in_transform() or _in_onnx_export():
        return _reference(h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=dt, dx=dx, dy=dy, boundary=boundary)
    if _are_tensors(h, u, v, D_x, D_y) and type(K) is int and type(dt) is type(dx) is type(dy) is float:
        problem = Problem(h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary)  # type: ignore[arg-type]
        if problem.is_right():  # the usual call, without a message to prepare for
            return cast(Tensor, _solve(*problem))
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
    if in_transform() or _in_onnx_export():
        return _reference_1d(h, u, D_x, f, h_prev=h_prev, K=K, dt=dt, dx=dx, boundary=boundary)
    where = check_arguments(h, (u,), (D_x,), f, h_prev, K, dt, (dx,), boundary)
    zero = h.new_zeros(())
    u, D_x = (c if isinstance(c, Tensor) else h.new_full((), c) for c in (u, D_x))
    # no flow and no diffusion along y: the single row has no neighbours
    inputs = (h, h_prev, u, zero, D_x, zero, f)
    rows = (q.unsqueeze(2) if q is not None and q.ndim == 3 else q for q in inputs)
    return cast(Tensor, _solve(*rows, K, dt, dx, 1.0, where.value)).squeeze(2)


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
    """`pdecnn.reference.advection_diffusion_3d` by the fastest kernel; backward saves the inputs alone."""
    if in_transform() or _in_onnx_export():
        return _reference_3d(
            h, u, v, w, D_x, D_y, D_z, f, h_prev=h_prev, K=K, dt=dt, dx=dx, dy=dy, dz=dz, boundary=boundary
        )
    where = check_arguments(h, (u, v, w), (D_x, D_y, D_z), f, h_prev, K, dt, (dx, dy, dz), boundary)
    u, v, w, D_x, D_y, D_z = (c if isinstance(c, Tensor) else h.new_full((), c) for c in (u, v, w, D_x, D_y, D_z))
    return cast(Tensor, _solve_3d(h, h_prev, u, v, w, D_x, D_y, D_z, f, K, dt, dx, dy, dz, where.value))
