# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The device code of `triton.py`: a whole Global layer in inference, plane by plane.

The stencils of a plane write its coefficients into the program's scratch, the march of the solver makes the K steps
there, and the output affine, activation and residual are applied while the result is written.
"""

import triton
import triton.language as tl

from pdecnn.kernels.advection_diffusion.triton_kernels import _copy, _inside, _march, _scalar


@triton.jit
def _activate(value, ACT: tl.constexpr):
    """The activations in the order of `library.ACTIVATIONS`; NaN passes, as in torch."""
    if ACT == 1 or ACT == 2:
        value = tl.where(value < 0.0, 0.0, value)
    if ACT == 2:
        value = tl.where(value > 6.0, 6.0, value)
    if ACT == 3:
        value = 2.0 * tl.sigmoid(2.0 * value) - 1.0
    if ACT == 4:
        value = tl.where(value < -1.0, -1.0, tl.where(value > 1.0, 1.0, value))
    return value


@triton.jit
def _correlate(h, taps, start, y, x, H, W, SIDE: tl.constexpr, TURNED: tl.constexpr):
    """`start` plus the correlation of the plane h with SIDE x SIDE taps at (y, x), zeros beyond the border.

    Turned by half a turn the taps give the adjoint.
    """
    total = tl.zeros((y.shape[0], x.shape[1]), tl.float32) + start
    for p in tl.static_range(SIDE):
        for q in tl.static_range(SIDE):
            tap = tl.load(taps + ((SIDE - 1 - p) * SIDE + SIDE - 1 - q if TURNED else p * SIDE + q))
            total += tap * _shifted(h, y + (p - SIDE // 2), x + (q - SIDE // 2), H, W)
    return total


@triton.jit
def _shifted(h, y, x, H, W):
    """The plane h at (y, x), zero beyond the border."""
    return tl.load(h + y * W + x, mask=_inside(y, x, H, W), other=0.0)


@triton.jit
def _stencil(
    to, h, taps, bias, H, W, SIDE: tl.constexpr, ACT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr
):
    """`act(bias + the correlation of the plane h with its taps)`."""
    for y_0 in range(0, H, BLOCK_H):
        for x_0 in range(0, W, BLOCK_W):
            y, x = y_0 + tl.arange(0, BLOCK_H)[:, None], x_0 + tl.arange(0, BLOCK_W)[None, :]
            total = _correlate(h, taps, tl.load(bias), y, x, H, W, SIDE, False)
            tl.store(to + y * W + x, _activate(total, ACT), mask=(y < H) & (x < W))


@triton.jit
def _coefficients(
    maps, h, weight, bias, D_x, D_y, c, C, H, W,
    MAPS: tl.constexpr, SIDE: tl.constexpr, ACT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Fills four planes of scratch with u, v, D_x and D_y of a plane of channel c; a constant is one number."""
    size = tl.cast(H, tl.int64) * W
    for m in range(MAPS):
        taps = weight + (m * C + c) * (SIDE * SIDE)
        _stencil(maps + m * size, h, taps, bias + m * C + c, H, W, SIDE, ACT, BLOCK_H, BLOCK_W)
    if MAPS == 2:
        one = tl.zeros((1, 1), tl.int32)
        tl.store(maps + 2 * size + one, _scalar(D_x, tl.float32))
        tl.store(maps + 3 * size + one, _scalar(D_y, tl.float32))


@triton.jit(do_not_specialize=["planes", "C", "K"])
def layer_kernel(
    out, h, x, weight, bias, scale, shift, scratch, planes, C, H, W, K,
    D_x: tl.float64, D_y: tl.float64,
    dt: tl.float64, dt_dx: tl.float64, dt_dy: tl.float64, dt_dx2: tl.float64, dt_dy2: tl.float64,
    MAPS: tl.constexpr, SIDE: tl.constexpr, COEFFICIENT_ACT: tl.constexpr, OUTPUT_ACT: tl.constexpr,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, PREVIOUS_IS_INPUT: tl.constexpr, RESIDUAL: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """All maps are contiguous planes; the scratch of a program is a ring of two states and four coefficients."""
    size = tl.cast(H, tl.int64) * W
    ring = scratch + tl.program_id(0) * 6 * size
    maps = ring + 2 * size
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        c = plane % C
        first = plane * size
        _coefficients(
            maps, h + first, weight, bias, D_x, D_y, c, C, H, W, MAPS, SIDE, COEFFICIENT_ACT, BLOCK_H, BLOCK_W
        )  # fmt: skip
        _copy(ring, W, 1, (x if PREVIOUS_IS_INPUT else h) + first, W, 1, H, W, BLOCK_H, BLOCK_W)
        _copy(ring + size, W, 1, h + first, W, 1, H, W, BLOCK_H, BLOCK_W)
        _march(
            ring, 2, maps, maps + size, maps + 2 * size, maps + 3 * size, x + first, W, 1,
            H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
            True, True, MAPS == 4, MAPS == 4, BOUNDARY, HAS_F, False, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip
        last = ring + size * ((K + 1) % 2)
        a, b = tl.load(scale + c), tl.load(shift + c)
        for y_0 in range(0, H, BLOCK_H):
            for x_0 in range(0, W, BLOCK_W):
                y, column = y_0 + tl.arange(0, BLOCK_H)[:, None], x_0 + tl.arange(0, BLOCK_W)[None, :]
                live = (y < H) & (column < W)
                here = y * W + column
                value = _activate(tl.load(last + here, mask=live, other=0.0) * a + b, OUTPUT_ACT)
                if RESIDUAL:
                    value += tl.load(x + first + here, mask=live, other=0.0)
                tl.store(out + first + here, value, mask=live)
        tl.debug_barrier()  # the next plane uses the same scratch
