r"""The advection-diffusion solver for CUDA, forward and backward, in Triton.

A program takes one plane (one n, one c) at a time, and a fixed number of programs share all planes. Triton cannot reach
a neighbouring element of a register tile, so the states of a plane live in a scratch ring of the program's own, small
enough for the L2 cache, with one barrier per step. A plane that fits one tile keeps its weights in registers for all K
steps; a larger one is walked tile by tile.

The mathematics, with the adjoint, is told in `triton_kernels.py`.

**Memory.** Nothing is saved between forward and backward but the inputs. The backward recomputes the states and needs
`2 (K + 2)` planes of scratch per program; `SCRATCH_BYTES` bounds the whole by running fewer programs at once.
Gradients of per-channel and scalar coefficients are summed per plane, then by torch: no atomics, same bits each run.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import Problem
from pdecnn.kernels.advection_diffusion.triton_kernels import backward_kernel, forward_kernel
from pdecnn.kernels.library import BOUNDARIES, in_order, like

TILE_ELEMENTS = 1024
"""Largest tile: 16 warps of 2 elements per thread. More elements per thread spill registers (compiled for sm_90)."""

SCRATCH_BYTES = 256 * 2**20
"""Upper bound of the scratch of one launch, unless a single plane needs more."""

# No software pipelining: a load must not be moved before the barrier that makes its value visible.
OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}


def forward(*arguments: Any) -> Tensor:
    """`h^K` of a `Problem`. Any strides; arithmetic in float64 for float64, else in float32."""
    problem = Problem(*arguments)
    problem.check()
    out = like(problem.h)
    _launch(forward_kernel, problem, [out], planes=2)
    return out


def backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of the tensors of a `Problem`, each of its argument's shape; empty where `needs` is False.

    With `h_prev=None` the gradient of `h` holds both of its roles, and that of `h_prev` is empty.
    """
    *given, needs = arguments
    problem = Problem(*given)
    problem.check(grad)
    grads = problem.room(needs, sums=_arithmetic_dtype(grad))
    asked = {f"NEEDS_{name.upper()}": g.ndim > 1 for name, g in zip(Problem._fields, grads, strict=False)}
    if any(asked.values()):
        maps = [in_order(grad, problem.h), *grads]
        _launch(
            backward_kernel, problem, maps, planes=2 * (problem.K + 2), HAS_H_PREV=problem.h_prev is not None, **asked
        )
    return problem.gather(grads)


def _launch(kernel: Any, problem: Problem, results: Sequence[Tensor], *, planes: int, **constants: bool) -> None:
    """Runs a kernel with so many planes of scratch per program.

    Maps are copied into the order of `h` if they have another one, so that all have the same strides; a coefficient
    that is no map is given as one number per channel.
    """
    h = problem.h
    N, C, H, W = h.shape
    if N * C == 0:
        return
    fields = [h if q is None else q for q in problem.tensors]
    is_map = [q.shape == h.shape for q in fields]
    fields = [
        in_order(q, h) if m else q.expand(1, C, 1, 1).reshape(C).contiguous()
        for q, m in zip(fields, is_map, strict=True)
    ]
    block_h, block_w, num_warps = _tiling(H, W)
    size, dtype = planes * H * W, _arithmetic_dtype(h)
    programs = _programs(h, num_warps, size * dtype.itemsize)
    dt, dx, dy = problem.dt, problem.dx, problem.dy
    with torch.cuda.device_of(h):  # type: ignore[no-untyped-call]
        kernel[(programs,)](
            *results, *fields, *in_order(h, h).stride(),
            torch.empty(programs * size, dtype=dtype, device=h.device),
            N * C, C, H, W, problem.K, dt, dt / dx, dt / dy, dt / dx**2, dt / dy**2,
            **dict(zip(("U", "V", "D_X", "D_Y"), is_map[2:6], strict=True)),
            BOUNDARY=BOUNDARIES[problem.boundary], HAS_F=problem.f is not None,
            ONE_TILE=block_h >= H and block_w >= W, BLOCK_H=block_h, BLOCK_W=block_w,
            num_warps=num_warps, **constants, **OPTIONS,
        )  # fmt: skip


def _arithmetic_dtype(h: Tensor) -> torch.dtype:
    return torch.float64 if h.dtype == torch.float64 else torch.float32


def _tiling(H: int, W: int) -> tuple[int, int, int]:
    """Tile height, tile width and warps: whole rows first, as wide as the plane, up to `TILE_ELEMENTS`."""
    block_w = min(triton.next_power_of_2(W), TILE_ELEMENTS)
    block_h = min(triton.next_power_of_2(H), max(1, TILE_ELEMENTS // block_w))
    return block_h, block_w, min(16, max(1, block_h * block_w // 64))


def _programs(h: Tensor, num_warps: int, bytes_per_program: int) -> int:
    """As many programs as fill the device, have work and find scratch."""
    if h.is_cuda:
        device = torch.cuda.get_device_properties(h.device).multi_processor_count * max(1, 32 // num_warps)
    else:
        device = 2  # Triton's interpreter
    return max(1, min(h.shape[0] * h.shape[1], device, SCRATCH_BYTES // bytes_per_program))
