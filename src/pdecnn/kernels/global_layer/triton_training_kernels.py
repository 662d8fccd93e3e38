# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The device code of `triton_training.py`: what a Global layer in training needs beside its kernel of inference.

The passes are those of README.md. Sums over the batch leave these kernels as one number per plane and are finished by
torch: no atomics, same bits each run. A stencil is written nowhere but in the scratch of a program.
"""

import triton
import triton.language as tl

from pdecnn.kernels.advection_diffusion.triton_kernels import _differentiate
from pdecnn.kernels.global_layer.triton_kernels import _coefficients, _correlate, _shifted


@triton.jit
def _slope(value, ACT: tl.constexpr):
    """The derivative of an activation where it has this value; NaN has that of the inside, as in torch."""
    slope = tl.full(value.shape, 1.0, tl.float32)
    if ACT == 1 or ACT == 2:
        slope = tl.where(value <= 0.0, 0.0, slope)
    if ACT == 2:
        slope = tl.where(value >= 6.0, 0.0, slope)
    if ACT == 3:
        slope = 1.0 - value * value
    if ACT == 4:
        slope = tl.where((value <= -1.0) | (value >= 1.0), 0.0, slope)
    return slope


@triton.jit(do_not_specialize=["planes", "C"])
def moments_kernel(
    moments, h, weight, planes, C, H, W,
    MAPS: tl.constexpr, SIDE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Of each stencil's values on each plane the mean, and the sum of squares about it; `(2, maps, planes)`."""
    size = tl.cast(H, tl.int64) * W
    rows, columns = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_W)[None, :]
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        for m in range(MAPS):
            taps = weight + (m * C + plane % C) * (SIDE * SIDE)
            mean = tl.full((), 0.0, tl.float32)
            for power in tl.static_range(1, 3):
                total = tl.zeros((BLOCK_H, BLOCK_W), tl.float32)
                for y_0 in range(0, H, BLOCK_H):
                    for x_0 in range(0, W, BLOCK_W):
                        y, x = y_0 + rows, x_0 + columns
                        value = _correlate(h + plane * size, taps, -mean, y, x, H, W, SIDE, False)
                        value = tl.where((y < H) & (x < W), value, 0.0)
                        total += value if power == 1 else value * value
                result = tl.sum(total)
                if power == 1:
                    mean = result / size.to(tl.float32)
                    result = mean
                tl.store(moments + ((power - 1) * MAPS + m) * planes + plane, result)


@triton.jit(do_not_specialize=["planes", "C", "K"])
def adjoint_kernel(
    grad, grad_h, grad_h_prev, grad_f, grad_maps, sums, h, x, folded, shift, weight, start, scratch,
    planes, C, H, W, K, D_x: tl.float64, D_y: tl.float64,
    dt: tl.float64, dt_dx: tl.float64, dt_dy: tl.float64, dt_dx2: tl.float64, dt_dy2: tl.float64,
    MAPS: tl.constexpr, SIDE: tl.constexpr, ACT: tl.constexpr, BOUNDARY: tl.constexpr, HAS_F: tl.constexpr,
    HAS_H_PREV: tl.constexpr, ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient g of each map past its activation, `(maps, planes, H, W)`, and on each plane `sum g`, `sum g q`.

    The coefficients are `act(folded stencil + shift)`, to the bit those of the forward; q, `stencil + start`, is what
    the norm gets less its mean. The gradients of the steps' state, the one before it and the source are maps of their
    own. The scratch of a program has four coefficients and `2 (K + 2)` states.
    """
    size = tl.cast(H, tl.int64) * W
    maps = scratch + tl.program_id(0).to(tl.int64) * (2 * (K + 2) + 4) * size
    rows, columns = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_W)[None, :]
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        c, first = plane % C, plane * size
        to = grad_maps + first
        _coefficients(maps, h + first, folded, shift, D_x, D_y, c, C, H, W, MAPS, SIDE, ACT, BLOCK_H, BLOCK_W)
        tl.debug_barrier()
        _differentiate(
            grad + first, grad_h + first, grad_h_prev + first, to, to + planes * size, to + 2 * planes * size,
            to + 3 * planes * size, grad_f + first, h + first, (x if HAS_H_PREV else h) + first,
            maps, maps + size, maps + 2 * size, maps + 3 * size, x + first, W, 1, maps + 4 * size,
            H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, True, True, MAPS == 4, MAPS == 4, BOUNDARY, HAS_F, HAS_H_PREV,
            True, HAS_H_PREV, True, True, MAPS == 4, MAPS == 4, HAS_F, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip
        for m in range(MAPS):
            taps, centre = weight + (m * C + c) * (SIDE * SIDE), tl.load(start + m * C + c)
            sum_g = tl.zeros((BLOCK_H, BLOCK_W), tl.float32)
            sum_gq = sum_g
            for y_0 in range(0, H, BLOCK_H):
                for x_0 in range(0, W, BLOCK_W):
                    y, column = y_0 + rows, x_0 + columns
                    live, here = (y < H) & (column < W), y * W + column
                    q = _correlate(h + first, taps, centre, y, column, H, W, SIDE, False)
                    g = tl.load(to + m * planes * size + here, mask=live, other=0.0)
                    g *= _slope(tl.load(maps + m * size + here, mask=live, other=0.0), ACT)
                    tl.store(to + m * planes * size + here, g, mask=live)
                    sum_g += tl.where(live, g, 0.0)
                    sum_gq += tl.where(live, g * q, 0.0)
            tl.store(sums + m * planes + plane, tl.sum(sum_g))
            tl.store(sums + (MAPS + m) * planes + plane, tl.sum(sum_gq))
        tl.debug_barrier()  # the next plane uses the same scratch


@triton.jit(do_not_specialize=["planes", "C"])
def turned_kernel(
    grad_h, grad_taps, grad_maps, h, weight, start, of_g, of_q, of_1, scratch, planes, C, H, W,
    MAPS: tl.constexpr, SIDE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Adds to `grad_h` what comes through the stencils; the taps' gradients on each plane, `(maps, planes, side^2)`.

    Before its norm a map has the gradient `of_g g + of_q q + of_1`, which the scratch of a program holds for all maps.
    """
    size = tl.cast(H, tl.int64) * W
    before = scratch + tl.program_id(0).to(tl.int64) * MAPS * size
    rows, columns = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_W)[None, :]
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        c, first = plane % C, plane * size
        for m in range(MAPS):
            taps, one = weight + (m * C + c) * (SIDE * SIDE), m * C + c
            a, b, e = tl.load(of_g + one), tl.load(of_q + one), tl.load(of_1 + one)
            for y_0 in range(0, H, BLOCK_H):
                for x_0 in range(0, W, BLOCK_W):
                    y, x = y_0 + rows, x_0 + columns
                    live, here = (y < H) & (x < W), y * W + x
                    q = _correlate(h + first, taps, tl.load(start + one), y, x, H, W, SIDE, False)
                    g = tl.load(grad_maps + m * planes * size + first + here, mask=live, other=0.0)
                    tl.store(before + m * size + here, a * g + b * q + e, mask=live)
        tl.debug_barrier()
        for y_0 in range(0, H, BLOCK_H):
            for x_0 in range(0, W, BLOCK_W):
                y, x = y_0 + rows, x_0 + columns
                live, here = (y < H) & (x < W), first + y * W + x
                total = tl.load(grad_h + here, mask=live, other=0.0)
                for m in range(MAPS):
                    taps = weight + (m * C + c) * (SIDE * SIDE)
                    total = _correlate(before + m * size, taps, total, y, x, H, W, SIDE, True)
                tl.store(grad_h + here, total, mask=live)
        for m in range(MAPS):
            for p in range(SIDE):
                for q in range(SIDE):
                    total = tl.zeros((BLOCK_H, BLOCK_W), tl.float32)
                    for y_0 in range(0, H, BLOCK_H):
                        for x_0 in range(0, W, BLOCK_W):
                            y, x = y_0 + rows, x_0 + columns
                            shifted = _shifted(h + first, y + p - SIDE // 2, x + q - SIDE // 2, H, W)
                            total += _shifted(before + m * size, y, x, H, W) * shifted
                    one = ((m * planes + plane) * SIDE + p) * SIDE + q
                    tl.store(grad_taps + one, tl.sum(total))
        tl.debug_barrier()  # the next plane uses the same scratch
