# mypy: disable-error-code="no-untyped-def,no-untyped-call"
r"""The device code of `triton.py`: one march over K steps that serves the solver and its adjoint.

With `A_x = u dt/dx`, `B_x = D_x dt/dx^2`, `M = 1 - 2 sum B`, `r = 1 / (1 + 2 sum B)` a step of the solver is

    h^{k+1} = r (M h^{k-1} - (A_x[x+1] - A_x[x-1]) h^k + (2 B_x - A_x) h^k[x+1] + (2 B_x + A_x) h^k[x-1] + y + 2 dt f)

and, with `q^k = r dLoss/dh^k`, its adjoint is the same recurrence from K down to 0, with the neighbours' weights:

    q^k = r (M q^{k+2} - (A_x[x+1] - A_x[x-1]) q^{k+1}
             + (2 B_x + A_x)[x+1] q^{k+1}[x+1] + (2 B_x - A_x)[x-1] q^{k+1}[x-1] + the same in y)

Beyond a Neumann border A is mirrored oddly and B, h, q evenly, beyond a Dirichlet border h and q are zero: so both hold
there too. Hence one `_march` serves both. The gradients are then sums over the K steps, taken in a last pass:

    du   = dt/dx   sum_k h^k[x-1] (q - q[x-1]) + h^k[x+1] (q[x+1] - q)            with q = q^{k+1}
    dD_x = dt/dx^2 sum_k 2 q (h^k[x+1] + h^k[x-1] - h^{k-1} - h^{k+1}),           df = 2 dt sum_k q
"""

import triton
import triton.language as tl

PERIODIC: tl.constexpr = tl.constexpr(0)
NEUMANN: tl.constexpr = tl.constexpr(1)
DIRICHLET: tl.constexpr = tl.constexpr(2)

# How a gradient leaves the kernel: not at all, as a map, or as one sum per plane.
SKIP: tl.constexpr = tl.constexpr(0)
MAP: tl.constexpr = tl.constexpr(1)
SUM: tl.constexpr = tl.constexpr(2)


@triton.jit
def _scalar(value, dtype: tl.constexpr):
    """A float64 argument in the arithmetic's dtype, as a 1 x 1 tile."""
    return (tl.zeros((1, 1), tl.float64) + value).to(dtype)


@triton.jit
def _inside(y, x, H, W):
    return (y >= 0) & (y < H) & (x >= 0) & (x < W)


@triton.jit
def _index(i, n, BOUNDARY: tl.constexpr):
    """The index inside the plane that stands for `i` in -1..n: the opposite border, or the border itself."""
    if BOUNDARY == PERIODIC:
        inside = tl.where(i < 0, n - 1, tl.where(i >= n, 0, i))
    else:
        inside = tl.minimum(tl.maximum(i, 0), n - 1)
    return inside


@triton.jit
def _state(slot, y, x, live, H, W, BOUNDARY: tl.constexpr):
    """A state of the ring at (y, x), which may lie one step beyond the border."""
    if BOUNDARY == DIRICHLET:
        live = live & _inside(y, x, H, W)
    return tl.load(slot + _index(y, H, BOUNDARY) * W + _index(x, W, BOUNDARY), mask=live, other=0.0)


@triton.jit
def _field(ptr, s_y, s_x, y, x, live, H, W, BOUNDARY: tl.constexpr, dtype: tl.constexpr):
    """An input at (y, x), mirrored evenly at a border that is not periodic."""
    offset = _index(y, H, BOUNDARY) * s_y + _index(x, W, BOUNDARY) * s_x
    return tl.load(ptr + offset, mask=live, other=0.0).to(dtype)


@triton.jit
def _velocity(ptr, s_y, s_x, y, x, live, H, W, BOUNDARY: tl.constexpr, dtype: tl.constexpr):
    """A velocity at (y, x), reached along its own axis: a Neumann border reflects it."""
    c = _field(ptr, s_y, s_x, y, x, live, H, W, BOUNDARY, dtype)
    if BOUNDARY == NEUMANN:
        c = tl.where(_inside(y, x, H, W), c, -c)
    return c


@triton.jit
def _diffusion_numbers(
    D_x, D_x_sy, D_x_sx, D_y, D_y_sy, D_y_sx, y, x, live, H, W, dt_dx2, dt_dy2,
    BOUNDARY: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """`2 B_x` and `2 B_y` at (y, x)."""
    two_B_x = _field(D_x, D_x_sy, D_x_sx, y, x, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt_dx2, dtype))
    two_B_y = _field(D_y, D_y_sy, D_y_sx, y, x, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt_dy2, dtype))
    return two_B_x, two_B_y


@triton.jit
def _weights(
    u, u_sy, u_sx, v, v_sy, v_sx, D_x, D_x_sy, D_x_sx, D_y, D_y_sy, D_y_sx, f, f_sy, f_sx,
    y, x, live, H, W, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, ADJOINT: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """The weights of `next = a prev + b now + xp now[x+1] + xm now[x-1] + yp now[y+1] + ym now[y-1] + s`."""
    dt_dx_ = _scalar(dt_dx, dtype)
    dt_dy_ = _scalar(dt_dy, dtype)
    A_xp = _velocity(u, u_sy, u_sx, y, x + 1, live, H, W, BOUNDARY, dtype) * dt_dx_
    A_xm = _velocity(u, u_sy, u_sx, y, x - 1, live, H, W, BOUNDARY, dtype) * dt_dx_
    A_yp = _velocity(v, v_sy, v_sx, y + 1, x, live, H, W, BOUNDARY, dtype) * dt_dy_
    A_ym = _velocity(v, v_sy, v_sx, y - 1, x, live, H, W, BOUNDARY, dtype) * dt_dy_
    two_B_x, two_B_y = _diffusion_numbers(
        D_x, D_x_sy, D_x_sx, D_y, D_y_sy, D_y_sx, y, x, live, H, W, dt_dx2, dt_dy2, BOUNDARY, dtype
    )
    r = 1.0 / (1.0 + two_B_x + two_B_y)
    a = (1.0 - two_B_x - two_B_y) * r
    b = -(A_xp - A_xm + A_yp - A_ym) * r
    if ADJOINT:
        # The weights with which the neighbours read this element: theirs, not ours.
        B2_xp = _field(D_x, D_x_sy, D_x_sx, y, x + 1, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt_dx2, dtype))
        B2_xm = _field(D_x, D_x_sy, D_x_sx, y, x - 1, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt_dx2, dtype))
        B2_yp = _field(D_y, D_y_sy, D_y_sx, y + 1, x, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt_dy2, dtype))
        B2_ym = _field(D_y, D_y_sy, D_y_sx, y - 1, x, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt_dy2, dtype))
        xp, xm, yp, ym = (B2_xp + A_xp) * r, (B2_xm - A_xm) * r, (B2_yp + A_yp) * r, (B2_ym - A_ym) * r
    else:
        A_x = _field(u, u_sy, u_sx, y, x, live, H, W, BOUNDARY, dtype) * dt_dx_
        A_y = _field(v, v_sy, v_sx, y, x, live, H, W, BOUNDARY, dtype) * dt_dy_
        xp, xm, yp, ym = (two_B_x - A_x) * r, (two_B_x + A_x) * r, (two_B_y - A_y) * r, (two_B_y + A_y) * r
    if HAS_F:
        s = _field(f, f_sy, f_sx, y, x, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt, dtype)) * r
    else:
        s = tl.zeros_like(r)
    return a, b, xp, xm, yp, ym, s


@triton.jit
def _gather(now, a, b, xp, xm, yp, ym, s, prev_value, now_value, y, x, live, H, W, BOUNDARY: tl.constexpr):
    """One step at the elements of a tile."""
    value = a * prev_value + b * now_value + s
    value += xp * _state(now, y, x + 1, live, H, W, BOUNDARY) + xm * _state(now, y, x - 1, live, H, W, BOUNDARY)
    value += yp * _state(now, y + 1, x, live, H, W, BOUNDARY) + ym * _state(now, y - 1, x, live, H, W, BOUNDARY)
    return value


@triton.jit
def _march(
    ring, slots,
    u, u_sy, u_sx, v, v_sy, v_sx, D_x, D_x_sy, D_x_sx, D_y, D_y_sy, D_y_sx, f, f_sy, f_sx,
    H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, ADJOINT: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """K steps from slots 0 (before) and 1 (now) of a ring of planes; step k fills slot `(k + 2) % slots`.

    With two slots the new state replaces the one before the present, which is read only at the element being written.
    """
    dtype: tl.constexpr = ring.dtype.element_ty
    size = tl.cast(H, tl.int64) * W
    rows = tl.arange(0, BLOCK_H)[:, None]
    columns = tl.arange(0, BLOCK_W)[None, :]
    tl.debug_barrier()
    if ONE_TILE:
        y, x = rows, columns
        live = (y < H) & (x < W)
        a, b, xp, xm, yp, ym, s = _weights(
            u, u_sy, u_sx, v, v_sy, v_sx, D_x, D_x_sy, D_x_sx, D_y, D_y_sy, D_y_sx, f, f_sy, f_sx,
            y, x, live, H, W, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, BOUNDARY, HAS_F, ADJOINT, dtype,
        )  # fmt: skip
        prev_value = tl.load(ring + y * W + x, mask=live, other=0.0)
        now_value = tl.load(ring + size + y * W + x, mask=live, other=0.0)
        for k in range(K):
            now = ring + size * ((k + 1) % slots)
            value = _gather(now, a, b, xp, xm, yp, ym, s, prev_value, now_value, y, x, live, H, W, BOUNDARY)
            tl.store(ring + size * ((k + 2) % slots) + y * W + x, value, mask=live)
            tl.debug_barrier()
            prev_value, now_value = now_value, value
    else:
        for k in range(K):
            prev = ring + size * (k % slots)
            now = ring + size * ((k + 1) % slots)
            following = ring + size * ((k + 2) % slots)
            for y_0 in range(0, H, BLOCK_H):
                for x_0 in range(0, W, BLOCK_W):
                    y, x = y_0 + rows, x_0 + columns
                    live = (y < H) & (x < W)
                    a, b, xp, xm, yp, ym, s = _weights(
                        u, u_sy, u_sx, v, v_sy, v_sx, D_x, D_x_sy, D_x_sx, D_y, D_y_sy, D_y_sx, f, f_sy, f_sx,
                        y, x, live, H, W, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, BOUNDARY, HAS_F, ADJOINT, dtype,
                    )  # fmt: skip
                    prev_value = tl.load(prev + y * W + x, mask=live, other=0.0)
                    now_value = tl.load(now + y * W + x, mask=live, other=0.0)
                    value = _gather(now, a, b, xp, xm, yp, ym, s, prev_value, now_value, y, x, live, H, W, BOUNDARY)
                    tl.store(following + y * W + x, value, mask=live)
            tl.debug_barrier()


@triton.jit
def _copy_in(slot, q, q_sy, q_sx, H, W, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    """Copies a strided plane into a slot of the ring."""
    dtype: tl.constexpr = slot.dtype.element_ty
    for y_0 in range(0, H, BLOCK_H):
        for x_0 in range(0, W, BLOCK_W):
            y, x = y_0 + tl.arange(0, BLOCK_H)[:, None], x_0 + tl.arange(0, BLOCK_W)[None, :]
            live = (y < H) & (x < W)
            tl.store(slot + y * W + x, _field(q, q_sy, q_sx, y, x, live, H, W, PERIODIC, dtype), mask=live)


@triton.jit(do_not_specialize=["planes", "C", "K"])
def forward_kernel(
    out, out_sn, out_sc, out_sy, out_sx,
    h, h_sn, h_sc, h_sy, h_sx,
    h_prev, h_prev_sn, h_prev_sc, h_prev_sy, h_prev_sx,
    u, u_sn, u_sc, u_sy, u_sx,
    v, v_sn, v_sc, v_sy, v_sx,
    D_x, D_x_sn, D_x_sc, D_x_sy, D_x_sx,
    D_y, D_y_sn, D_y_sc, D_y_sy, D_y_sx,
    f, f_sn, f_sc, f_sy, f_sx,
    states, planes, C, H, W, K,
    dt: tl.float64, dt_dx: tl.float64, dt_dy: tl.float64, dt_dx2: tl.float64, dt_dy2: tl.float64,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Every program solves planes `program_id, program_id + programs, ...`; `states` has two planes per program."""
    size = tl.cast(H, tl.int64) * W
    ring = states + tl.program_id(0).to(tl.int64) * 2 * size
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        n, c = tl.cast(plane // C, tl.int64), tl.cast(plane % C, tl.int64)
        _copy_in(ring, h_prev + n * h_prev_sn + c * h_prev_sc, h_prev_sy, h_prev_sx, H, W, BLOCK_H, BLOCK_W)
        _copy_in(ring + size, h + n * h_sn + c * h_sc, h_sy, h_sx, H, W, BLOCK_H, BLOCK_W)
        _march(
            ring, 2,
            u + n * u_sn + c * u_sc, u_sy, u_sx, v + n * v_sn + c * v_sc, v_sy, v_sx,
            D_x + n * D_x_sn + c * D_x_sc, D_x_sy, D_x_sx, D_y + n * D_y_sn + c * D_y_sc, D_y_sy, D_y_sx,
            f + n * f_sn + c * f_sc, f_sy, f_sx,
            H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, BOUNDARY, HAS_F, False, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip
        last = ring + size * ((K + 1) % 2)
        result = out + n * out_sn + c * out_sc
        for y_0 in range(0, H, BLOCK_H):
            for x_0 in range(0, W, BLOCK_W):
                y, x = y_0 + tl.arange(0, BLOCK_H)[:, None], x_0 + tl.arange(0, BLOCK_W)[None, :]
                live = (y < H) & (x < W)
                value = tl.load(last + y * W + x, mask=live)
                tl.store(result + y * out_sy + x * out_sx, value, mask=live)
        tl.debug_barrier()  # the next plane uses the same ring


@triton.jit
def _emit(value, total, out, offset, live, KIND: tl.constexpr):
    """Stores a tile of a gradient map, or adds it to the sum of the plane."""
    if KIND == MAP:
        tl.store(out + offset, value, mask=live)
    if KIND == SUM:
        total += tl.sum(tl.where(live, value, 0.0))
    return total


@triton.jit
def _central_adjoint(q, q_plus, q_minus, h, h_plus, h_minus, at_end, at_start, BOUNDARY: tl.constexpr):
    """One axis and step of `du dx/dt`: `q (h[-1] - h[+1])` and the adjoint of the difference of u in the divergence."""
    e_plus, e_minus = q_plus * h_plus, q_minus * h_minus
    if BOUNDARY == DIRICHLET:
        # The velocity keeps its border value outside, so its difference is one-sided there; the state does not.
        e_plus = tl.where(at_end, -q * h, e_plus)
        e_minus = tl.where(at_start, -q * h, e_minus)
    return q * (h_minus - h_plus) + e_plus - e_minus


@triton.jit(do_not_specialize=["planes", "C", "K"])
def backward_kernel(
    grad, grad_sn, grad_sc, grad_sy, grad_sx,
    h, h_sn, h_sc, h_sy, h_sx,
    h_prev, h_prev_sn, h_prev_sc, h_prev_sy, h_prev_sx,
    u, u_sn, u_sc, u_sy, u_sx,
    v, v_sn, v_sc, v_sy, v_sx,
    D_x, D_x_sn, D_x_sc, D_x_sy, D_x_sx,
    D_y, D_y_sn, D_y_sc, D_y_sy, D_y_sx,
    f, f_sn, f_sc, f_sy, f_sx,
    grad_h, grad_h_prev, grad_u, grad_v, grad_D_x, grad_D_y, grad_f, out_sn, out_sc, out_sy, out_sx,
    scratch, planes, C, H, W, K,
    dt: tl.float64, dt_dx: tl.float64, dt_dy: tl.float64, dt_dx2: tl.float64, dt_dy2: tl.float64,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, HAS_H_PREV: tl.constexpr,
    NEEDS_H: tl.constexpr, NEEDS_H_PREV: tl.constexpr,
    U: tl.constexpr, V: tl.constexpr, D_X: tl.constexpr, D_Y: tl.constexpr, NEEDS_F: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Recomputes the states, runs the adjoint and sums the gradients; `scratch` has `2 (K + 2)` planes per program."""
    dtype: tl.constexpr = scratch.dtype.element_ty
    size = tl.cast(H, tl.int64) * W
    states = scratch + tl.program_id(0).to(tl.int64) * 2 * (K + 2) * size  # h^k in slot k + 1
    adjoint = states + (K + 2) * size  # q^k in slot K + 1 - k
    rows = tl.arange(0, BLOCK_H)[:, None]
    columns = tl.arange(0, BLOCK_W)[None, :]

    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        n, c = tl.cast(plane // C, tl.int64), tl.cast(plane % C, tl.int64)
        u_plane, v_plane = u + n * u_sn + c * u_sc, v + n * v_sn + c * v_sc
        D_x_plane, D_y_plane = D_x + n * D_x_sn + c * D_x_sc, D_y + n * D_y_sn + c * D_y_sc
        f_plane = f + n * f_sn + c * f_sc
        grad_plane = grad + n * grad_sn + c * grad_sc
        first_out = n * out_sn + c * out_sc

        if (U != SKIP) or (V != SKIP) or (D_X != SKIP) or (D_Y != SKIP):
            _copy_in(states, h_prev + n * h_prev_sn + c * h_prev_sc, h_prev_sy, h_prev_sx, H, W, BLOCK_H, BLOCK_W)
            _copy_in(states + size, h + n * h_sn + c * h_sc, h_sy, h_sx, H, W, BLOCK_H, BLOCK_W)
            _march(
                states, K + 2,
                u_plane, u_sy, u_sx, v_plane, v_sy, v_sx, D_x_plane, D_x_sy, D_x_sx, D_y_plane, D_y_sy, D_y_sx,
                f_plane, f_sy, f_sx,
                H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, BOUNDARY, HAS_F, False, ONE_TILE, BLOCK_H, BLOCK_W,
            )  # fmt: skip

        # q^{K+1} = 0, q^K = r dLoss/dh^K
        for y_0 in range(0, H, BLOCK_H):
            for x_0 in range(0, W, BLOCK_W):
                y, x = y_0 + rows, x_0 + columns
                live = (y < H) & (x < W)
                two_B_x, two_B_y = _diffusion_numbers(
                    D_x_plane, D_x_sy, D_x_sx, D_y_plane, D_y_sy, D_y_sx,
                    y, x, live, H, W, dt_dx2, dt_dy2, BOUNDARY, dtype,
                )  # fmt: skip
                g = _field(grad_plane, grad_sy, grad_sx, y, x, live, H, W, BOUNDARY, dtype)
                tl.store(adjoint + y * W + x, tl.zeros_like(g), mask=live)
                tl.store(adjoint + size + y * W + x, g / (1.0 + two_B_x + two_B_y), mask=live)
        _march(
            adjoint, K + 2,
            u_plane, u_sy, u_sx, v_plane, v_sy, v_sx, D_x_plane, D_x_sy, D_x_sx, D_y_plane, D_y_sy, D_y_sx,
            f_plane, f_sy, f_sx,
            H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, BOUNDARY, False, True, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip

        total_u = tl.full((), 0.0, dtype)
        total_v = tl.full((), 0.0, dtype)
        total_D_x = tl.full((), 0.0, dtype)
        total_D_y = tl.full((), 0.0, dtype)
        for y_0 in range(0, H, BLOCK_H):
            for x_0 in range(0, W, BLOCK_W):
                y, x = y_0 + rows, x_0 + columns
                live = (y < H) & (x < W)
                here = y * W + x
                offset = first_out + (y * out_sy + x * out_sx)
                if NEEDS_H or NEEDS_H_PREV:
                    two_B_x, two_B_y = _diffusion_numbers(
                        D_x_plane, D_x_sy, D_x_sx, D_y_plane, D_y_sy, D_y_sx,
                        y, x, live, H, W, dt_dx2, dt_dy2, BOUNDARY, dtype,
                    )  # fmt: skip
                    two_B = two_B_x + two_B_y
                    from_h = (1.0 + two_B) * tl.load(adjoint + (K + 1) * size + here, mask=live, other=0.0)
                    from_h_prev = (1.0 - two_B) * tl.load(adjoint + K * size + here, mask=live, other=0.0)
                    if NEEDS_H:
                        if HAS_H_PREV:
                            tl.store(grad_h + offset, from_h, mask=live)
                        else:
                            tl.store(grad_h + offset, from_h + from_h_prev, mask=live)
                    if NEEDS_H_PREV:
                        tl.store(grad_h_prev + offset, from_h_prev, mask=live)

                sum_u = tl.zeros((BLOCK_H, BLOCK_W), dtype)
                sum_v = tl.zeros((BLOCK_H, BLOCK_W), dtype)
                sum_D_x = tl.zeros((BLOCK_H, BLOCK_W), dtype)
                sum_D_y = tl.zeros((BLOCK_H, BLOCK_W), dtype)
                sum_f = tl.zeros((BLOCK_H, BLOCK_W), dtype)
                for k in range(K):
                    q_slot = adjoint + (K - k) * size
                    h_slot = states + (k + 1) * size
                    q = tl.load(q_slot + here, mask=live, other=0.0)
                    if NEEDS_F:
                        sum_f += q
                    if (D_X != SKIP) or (D_Y != SKIP):
                        around = tl.load(h_slot - size + here, mask=live, other=0.0)
                        around += tl.load(h_slot + size + here, mask=live, other=0.0)
                    if (U != SKIP) or (V != SKIP):
                        h_here = tl.load(h_slot + here, mask=live, other=0.0)
                    if (U != SKIP) or (D_X != SKIP):
                        h_plus = _state(h_slot, y, x + 1, live, H, W, BOUNDARY)
                        h_minus = _state(h_slot, y, x - 1, live, H, W, BOUNDARY)
                        if D_X != SKIP:
                            sum_D_x += q * (h_plus + h_minus - around)
                        if U != SKIP:
                            q_plus = _state(q_slot, y, x + 1, live, H, W, BOUNDARY)
                            q_minus = _state(q_slot, y, x - 1, live, H, W, BOUNDARY)
                            sum_u += _central_adjoint(
                                q, q_plus, q_minus, h_here, h_plus, h_minus, x == W - 1, x == 0, BOUNDARY
                            )
                    if (V != SKIP) or (D_Y != SKIP):
                        h_plus = _state(h_slot, y + 1, x, live, H, W, BOUNDARY)
                        h_minus = _state(h_slot, y - 1, x, live, H, W, BOUNDARY)
                        if D_Y != SKIP:
                            sum_D_y += q * (h_plus + h_minus - around)
                        if V != SKIP:
                            q_plus = _state(q_slot, y + 1, x, live, H, W, BOUNDARY)
                            q_minus = _state(q_slot, y - 1, x, live, H, W, BOUNDARY)
                            sum_v += _central_adjoint(
                                q, q_plus, q_minus, h_here, h_plus, h_minus, y == H - 1, y == 0, BOUNDARY
                            )
                if NEEDS_F:
                    tl.store(grad_f + offset, sum_f * (2 * _scalar(dt, dtype)), mask=live)
                total_u = _emit(sum_u * _scalar(dt_dx, dtype), total_u, grad_u, offset, live, U)
                total_v = _emit(sum_v * _scalar(dt_dy, dtype), total_v, grad_v, offset, live, V)
                total_D_x = _emit(sum_D_x * (2 * _scalar(dt_dx2, dtype)), total_D_x, grad_D_x, offset, live, D_X)
                total_D_y = _emit(sum_D_y * (2 * _scalar(dt_dy2, dtype)), total_D_y, grad_D_y, offset, live, D_Y)
        if U == SUM:
            tl.store(grad_u + plane, total_u)
        if V == SUM:
            tl.store(grad_v + plane, total_v)
        if D_X == SUM:
            tl.store(grad_D_x + plane, total_D_x)
        if D_Y == SUM:
            tl.store(grad_D_y + plane, total_D_y)
        tl.debug_barrier()  # the next plane uses the same scratch
