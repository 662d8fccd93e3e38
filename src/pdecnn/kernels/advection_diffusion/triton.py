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

import torch
import triton
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import check
from pdecnn.kernels.advection_diffusion.triton_kernels import backward_kernel, forward_kernel
from pdecnn.kernels.library import BOUNDARIES, like

TILE_ELEMENTS = 1024
"""Largest tile: 16 warps of 2 elements per thread. More elements per thread spill registers (compiled for sm_90)."""

SCRATCH_BYTES = 256 * 2**20
"""Upper bound of the scratch of one launch, unless a single plane needs more."""

# No software pipelining: a load must not be moved before the barrier that makes its value visible.
OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}


def forward(
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
    """Returns `h^K`; shapes and meanings are those of `pdecnn.reference.advection_diffusion`, unchecked here.

    `h_prev=None` means `h_prev = h`, `f=None` means no source. The coefficients are tensors of the shape of `h`, of
    `(1, C, 1, 1)` or of no dimension. Any strides; arithmetic in float64 for float64, else in float32.
    """
    check((h, h_prev, u, v, D_x, D_y, f), K, dt, dx, dy, boundary)
    out = like(h)
    N, C, H, W = h.shape
    if N * C == 0:
        return out
    block_h, block_w, num_warps = _tiling(H, W)
    dtype = _arithmetic_dtype(h)
    programs = _programs(h, num_warps, 2 * H * W * dtype.itemsize)
    states = torch.empty(programs * 2 * H * W, dtype=dtype, device=h.device)
    with torch.cuda.device_of(h):  # type: ignore[no-untyped-call]
        forward_kernel[(programs,)](
            *_fields(h, out, h, h if h_prev is None else h_prev, u, v, D_x, D_y, h if f is None else f),
            states, N * C, C, H, W, K, *_scalars(dt, dx, dy),
            BOUNDARY=BOUNDARIES[boundary], HAS_F=f is not None,
            ONE_TILE=block_h >= H and block_w >= W, BLOCK_H=block_h, BLOCK_W=block_w,
            num_warps=num_warps, **OPTIONS,
        )  # fmt: skip
    return out


def backward(
    grad: Tensor,
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
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients for `(h, h_prev, u, v, D_x, D_y, f)`, each of its argument's shape; empty where `needs` is False.

    With `h_prev=None` the gradient of `h` holds both of its roles, and that of `h_prev` is empty.
    """
    check((h, h_prev, u, v, D_x, D_y, f), K, dt, dx, dy, boundary, grad)
    N, C, H, W = h.shape
    needs = [need and q is not None for need, q in zip(needs, (h, h_prev, u, v, D_x, D_y, f), strict=True)]
    coefficients = (u, v, D_x, D_y)
    kinds = [_kind(c, h, need) for c, need in zip(coefficients, needs[2:6], strict=True)]
    dtype = _arithmetic_dtype(h)

    maps = {i: like(h) for i in (0, 1, 6) if needs[i]}
    maps |= {2 + i: like(h) for i, kind in enumerate(kinds) if kind == 1}
    sums = {2 + i: torch.empty(N, C, dtype=dtype, device=h.device) for i, kind in enumerate(kinds) if kind == 2}

    if N * C > 0 and any(needs):
        block_h, block_w, num_warps = _tiling(H, W)
        per_program = 2 * (K + 2) * H * W
        programs = _programs(h, num_warps, per_program * dtype.itemsize)
        scratch = torch.empty(programs * per_program, dtype=dtype, device=h.device)
        outputs = [maps.get(i, sums.get(i, scratch)) for i in range(7)]
        strides = like(h.detach().to("meta")).stride()  # of every gradient map
        with torch.cuda.device_of(h):  # type: ignore[no-untyped-call]
            backward_kernel[(programs,)](
                *_fields(h, grad, h, h if h_prev is None else h_prev, *coefficients, h if f is None else f),
                *outputs, *strides, scratch, N * C, C, H, W, K, *_scalars(dt, dx, dy),
                BOUNDARY=BOUNDARIES[boundary], HAS_F=f is not None, HAS_H_PREV=h_prev is not None,
                NEEDS_H=needs[0], NEEDS_H_PREV=needs[1],
                U=kinds[0], V=kinds[1], D_X=kinds[2], D_Y=kinds[3], NEEDS_F=needs[6],
                ONE_TILE=block_h >= H and block_w >= W, BLOCK_H=block_h, BLOCK_W=block_w,
                num_warps=num_warps, **OPTIONS,
            )  # fmt: skip

    for i, partial in sums.items():
        c = coefficients[i - 2]
        maps[i] = (partial.sum() if c.ndim == 0 else partial.sum(0).view(c.shape)).to(h.dtype)
    return [maps.get(i, h.new_empty(0)) for i in range(7)]


def _arithmetic_dtype(h: Tensor) -> torch.dtype:
    return torch.float64 if h.dtype == torch.float64 else torch.float32


def _kind(coefficient: Tensor, h: Tensor, needed: bool) -> int:
    return (1 if coefficient.shape == h.shape else 2) if needed else 0


def _fields(h: Tensor, *fields: Tensor) -> list[Tensor | int]:
    """Every field followed by its four strides; a broadcast coefficient has stride 0.

    Offsets inside a plane are 32-bit in the kernels, so a field with wider planes is copied.
    """
    H, W = h.shape[2:]
    arguments: list[Tensor | int] = []
    for q in fields:
        n, c, y, x = q.expand(h.shape).stride()
        if (H - 1) * y + (W - 1) * x >= 2**31:
            q = q.contiguous()
            n, c, y, x = q.expand(h.shape).stride()
        arguments += [q, n, c, y, x]
    return arguments


def _scalars(dt: float, dx: float, dy: float) -> tuple[float, ...]:
    return dt, dt / dx, dt / dy, dt / dx**2, dt / dy**2


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
