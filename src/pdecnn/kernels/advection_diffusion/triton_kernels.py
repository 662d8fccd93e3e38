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
def _field(ptr, IS_MAP: tl.constexpr, s_y, s_x, y, x, live, H, W, BOUNDARY: tl.constexpr, dtype: tl.constexpr):
    """An input at (y, x), mirrored evenly at a border that is not periodic; what is no map is one number."""
    if IS_MAP:
        value = tl.load(ptr + _index(y, H, BOUNDARY) * s_y + _index(x, W, BOUNDARY) * s_x, mask=live, other=0.0)
    else:
        value = tl.load(ptr + tl.zeros_like(live).to(tl.int32), mask=live, other=0.0)
    return value.to(dtype)


@triton.jit
def _velocity(ptr, IS_MAP: tl.constexpr, s_y, s_x, y, x, live, H, W, BOUNDARY: tl.constexpr, dtype: tl.constexpr):
    """A velocity at (y, x), reached along its own axis: a Neumann border reflects it."""
    c = _field(ptr, IS_MAP, s_y, s_x, y, x, live, H, W, BOUNDARY, dtype)
    if BOUNDARY == NEUMANN:
        c = tl.where(_inside(y, x, H, W), c, -c)
    return c


@triton.jit
def _plane(ptr, n, c, s_n, s_c, IS_MAP: tl.constexpr):
    """Where the plane of sample n and channel c begins."""
    return ptr + (n * s_n + c * s_c if IS_MAP else c)


@triton.jit
def _denominator(
    D_x, D_y, s_y, s_x, y, x, live, H, W, dt_dx2, dt_dy2, D_X: tl.constexpr, D_Y: tl.constexpr, dtype: tl.constexpr
):
    """`1 / r = 1 + 2 B_x + 2 B_y` at (y, x)."""
    two_B_x = _field(D_x, D_X, s_y, s_x, y, x, live, H, W, PERIODIC, dtype) * (2 * _scalar(dt_dx2, dtype))
    two_B_y = _field(D_y, D_Y, s_y, s_x, y, x, live, H, W, PERIODIC, dtype) * (2 * _scalar(dt_dy2, dtype))
    return 1.0 + two_B_x + two_B_y


@triton.jit
def _axis_weights(
    u, D, s_y, s_x, y, x, e_y: tl.constexpr, e_x: tl.constexpr, live, H, W, dt_dx, dt_dx2,
    U: tl.constexpr, D_IS_MAP: tl.constexpr, BOUNDARY: tl.constexpr, ADJOINT: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Along the axis (e_y, e_x): `2 B`, `A[+1] - A[-1]`, and `1 / r` times the weights of both neighbours."""
    to_A, to_B = _scalar(dt_dx, dtype), 2 * _scalar(dt_dx2, dtype)
    A_plus = _velocity(u, U, s_y, s_x, y + e_y, x + e_x, live, H, W, BOUNDARY, dtype) * to_A
    A_minus = _velocity(u, U, s_y, s_x, y - e_y, x - e_x, live, H, W, BOUNDARY, dtype) * to_A
    two_B = _field(D, D_IS_MAP, s_y, s_x, y, x, live, H, W, BOUNDARY, dtype) * to_B
    if ADJOINT:
        # The weights with which the neighbours read this element: theirs, not ours.
        plus = _field(D, D_IS_MAP, s_y, s_x, y + e_y, x + e_x, live, H, W, BOUNDARY, dtype) * to_B + A_plus
        minus = _field(D, D_IS_MAP, s_y, s_x, y - e_y, x - e_x, live, H, W, BOUNDARY, dtype) * to_B - A_minus
    else:
        A = _field(u, U, s_y, s_x, y, x, live, H, W, BOUNDARY, dtype) * to_A
        plus, minus = two_B - A, two_B + A
    return two_B, A_plus - A_minus, plus, minus


@triton.jit
def _weights(
    u, v, D_x, D_y, f, s_y, s_x, y, x, live, H, W, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
    U: tl.constexpr, V: tl.constexpr, D_X: tl.constexpr, D_Y: tl.constexpr,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, ADJOINT: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """The weights of `next = a prev + b now + xp now[x+1] + xm now[x-1] + yp now[y+1] + ym now[y-1] + s`."""
    two_B_x, flow_x, xp, xm = _axis_weights(
        u, D_x, s_y, s_x, y, x, 0, 1, live, H, W, dt_dx, dt_dx2, U, D_X, BOUNDARY, ADJOINT, dtype
    )
    two_B_y, flow_y, yp, ym = _axis_weights(
        v, D_y, s_y, s_x, y, x, 1, 0, live, H, W, dt_dy, dt_dy2, V, D_Y, BOUNDARY, ADJOINT, dtype
    )
    r = 1.0 / (1.0 + two_B_x + two_B_y)
    if HAS_F:
        s = _field(f, True, s_y, s_x, y, x, live, H, W, BOUNDARY, dtype) * (2 * _scalar(dt, dtype)) * r
    else:
        s = tl.zeros_like(r)
    return (1.0 - two_B_x - two_B_y) * r, -(flow_x + flow_y) * r, xp * r, xm * r, yp * r, ym * r, s


@triton.jit
def _gather(now, a, b, xp, xm, yp, ym, s, prev_value, now_value, y, x, live, H, W, BOUNDARY: tl.constexpr):
    """One step at the elements of a tile."""
    value = a * prev_value + b * now_value + s
    value += xp * _state(now, y, x + 1, live, H, W, BOUNDARY) + xm * _state(now, y, x - 1, live, H, W, BOUNDARY)
    value += yp * _state(now, y + 1, x, live, H, W, BOUNDARY) + ym * _state(now, y - 1, x, live, H, W, BOUNDARY)
    return value


@triton.jit
def _march(
    ring, slots, u, v, D_x, D_y, f, s_y, s_x, H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
    U: tl.constexpr, V: tl.constexpr, D_X: tl.constexpr, D_Y: tl.constexpr,
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
            u, v, D_x, D_y, f, s_y, s_x, y, x, live, H, W, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
            U, V, D_X, D_Y, BOUNDARY, HAS_F, ADJOINT, dtype,
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
                        u, v, D_x, D_y, f, s_y, s_x, y, x, live, H, W, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
                        U, V, D_X, D_Y, BOUNDARY, HAS_F, ADJOINT, dtype,
                    )  # fmt: skip
                    prev_value = tl.load(prev + y * W + x, mask=live, other=0.0)
                    now_value = tl.load(now + y * W + x, mask=live, other=0.0)
                    value = _gather(now, a, b, xp, xm, yp, ym, s, prev_value, now_value, y, x, live, H, W, BOUNDARY)
                    tl.store(following + y * W + x, value, mask=live)
            tl.debug_barrier()


@triton.jit
def _copy(to, to_sy, to_sx, q, s_y, s_x, H, W, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    """Copies a strided plane into or out of a slot of the ring."""
    for y_0 in range(0, H, BLOCK_H):
        for x_0 in range(0, W, BLOCK_W):
            y, x = y_0 + tl.arange(0, BLOCK_H)[:, None], x_0 + tl.arange(0, BLOCK_W)[None, :]
            live = (y < H) & (x < W)
            tl.store(to + y * to_sy + x * to_sx, tl.load(q + y * s_y + x * s_x, mask=live, other=0.0), mask=live)


@triton.jit(do_not_specialize=["planes", "C", "K"])
def forward_kernel(
    out, h, h_prev, u, v, D_x, D_y, f, s_n, s_c, s_y, s_x, scratch, planes, C, H, W, K,
    dt: tl.float64, dt_dx: tl.float64, dt_dy: tl.float64, dt_dx2: tl.float64, dt_dy2: tl.float64,
    U: tl.constexpr, V: tl.constexpr, D_X: tl.constexpr, D_Y: tl.constexpr,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Every program solves planes `program_id, program_id + programs, ...`; `scratch` has two planes per program.

    Maps have the strides `s_n, s_c, s_y, s_x`; a coefficient for which U, V, D_X or D_Y is False has one number per
    channel.
    """
    s_y, s_x = tl.cast(s_y, tl.int64), tl.cast(s_x, tl.int64)  # a plane of channels_last may span more than 2^31
    size = tl.cast(H, tl.int64) * W
    ring = scratch + tl.program_id(0).to(tl.int64) * 2 * size
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        n, c = tl.cast(plane // C, tl.int64), tl.cast(plane % C, tl.int64)
        first = n * s_n + c * s_c
        _copy(ring, W, 1, h_prev + first, s_y, s_x, H, W, BLOCK_H, BLOCK_W)
        _copy(ring + size, W, 1, h + first, s_y, s_x, H, W, BLOCK_H, BLOCK_W)
        _march(
            ring, 2, _plane(u, n, c, s_n, s_c, U), _plane(v, n, c, s_n, s_c, V),
            _plane(D_x, n, c, s_n, s_c, D_X), _plane(D_y, n, c, s_n, s_c, D_Y), f + first, s_y, s_x,
            H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
            U, V, D_X, D_Y, BOUNDARY, HAS_F, False, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip
        _copy(out + first, s_y, s_x, ring + size * ((K + 1) % 2), W, 1, H, W, BLOCK_H, BLOCK_W)
        tl.debug_barrier()  # the next plane uses the same ring


@triton.jit
def _add_step(
    sum_u, sum_D, q_slot, h_slot, around, y, x, e_y: tl.constexpr, e_x: tl.constexpr, live, H, W,
    NEEDS_U: tl.constexpr, NEEDS_D: tl.constexpr, BOUNDARY: tl.constexpr,
):  # fmt: skip
    """Adds one step to the sums of `du dx/dt` and `dD dx^2/(2 dt)` along the axis (e_y, e_x)."""
    if NEEDS_U or NEEDS_D:
        q = tl.load(q_slot + y * W + x, mask=live, other=0.0)
        h_plus = _state(h_slot, y + e_y, x + e_x, live, H, W, BOUNDARY)
        h_minus = _state(h_slot, y - e_y, x - e_x, live, H, W, BOUNDARY)
        if NEEDS_D:
            sum_D += q * (h_plus + h_minus - around)
        if NEEDS_U:
            # `q (h[-1] - h[+1])` and the adjoint of the difference of u in the divergence
            e_plus = _state(q_slot, y + e_y, x + e_x, live, H, W, BOUNDARY) * h_plus
            e_minus = _state(q_slot, y - e_y, x - e_x, live, H, W, BOUNDARY) * h_minus
            if BOUNDARY == DIRICHLET:
                # The velocity keeps its border value outside, so its difference is one-sided there; the state does not.
                qh = q * tl.load(h_slot + y * W + x, mask=live, other=0.0)
                e_plus = tl.where(_inside(y + e_y, x + e_x, H, W), e_plus, -qh)
                e_minus = tl.where(_inside(y - e_y, x - e_x, H, W), e_minus, -qh)
            sum_u += q * (h_minus - h_plus) + e_plus - e_minus
    return sum_u, sum_D


@triton.jit
def _emit(value, total, out, offset, live, NEEDED: tl.constexpr, IS_MAP: tl.constexpr):
    """Stores a tile of a gradient map, or the sum of the plane so far."""
    if NEEDED:
        if IS_MAP:
            tl.store(out + offset, value, mask=live)
        else:
            total += tl.sum(tl.where(live, value, 0.0))
            tl.store(out, total)
    return total


@triton.jit
def _differentiate(
    grad, grad_h, grad_h_prev, grad_u, grad_v, grad_D_x, grad_D_y, grad_f,
    h, h_prev, u, v, D_x, D_y, f, s_y, s_x, states, H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
    U: tl.constexpr, V: tl.constexpr, D_X: tl.constexpr, D_Y: tl.constexpr,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, HAS_H_PREV: tl.constexpr,
    NEEDS_H: tl.constexpr, NEEDS_H_PREV: tl.constexpr, NEEDS_U: tl.constexpr, NEEDS_V: tl.constexpr,
    NEEDS_D_X: tl.constexpr, NEEDS_D_Y: tl.constexpr, NEEDS_F: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradients of one plane, where every pointer begins; `states` has room for `2 (K + 2)` planes."""
    dtype: tl.constexpr = states.dtype.element_ty
    size = tl.cast(H, tl.int64) * W
    adjoint = states + (K + 2) * size  # q^k in slot K + 1 - k, as h^k is in slot k + 1 of the states
    rows = tl.arange(0, BLOCK_H)[:, None]
    columns = tl.arange(0, BLOCK_W)[None, :]

    if NEEDS_U or NEEDS_V or NEEDS_D_X or NEEDS_D_Y:
        _copy(states, W, 1, h_prev, s_y, s_x, H, W, BLOCK_H, BLOCK_W)
        _copy(states + size, W, 1, h, s_y, s_x, H, W, BLOCK_H, BLOCK_W)
        _march(
            states, K + 2, u, v, D_x, D_y, f, s_y, s_x, H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
            U, V, D_X, D_Y, BOUNDARY, HAS_F, False, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip

    # q^{K+1} = 0, q^K = r dLoss/dh^K
    for y_0 in range(0, H, BLOCK_H):
        for x_0 in range(0, W, BLOCK_W):
            y, x = y_0 + rows, x_0 + columns
            live = (y < H) & (x < W)
            L = _denominator(D_x, D_y, s_y, s_x, y, x, live, H, W, dt_dx2, dt_dy2, D_X, D_Y, dtype)
            g = tl.load(grad + y * s_y + x * s_x, mask=live, other=0.0).to(dtype)
            tl.store(adjoint + y * W + x, tl.zeros_like(g), mask=live)
            tl.store(adjoint + size + y * W + x, g / L, mask=live)
    _march(
        adjoint, K + 2, u, v, D_x, D_y, f, s_y, s_x, H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2,
        U, V, D_X, D_Y, BOUNDARY, False, True, ONE_TILE, BLOCK_H, BLOCK_W,
    )  # fmt: skip

    total_u = tl.full((), 0.0, dtype)
    total_v, total_D_x, total_D_y = total_u, total_u, total_u
    for y_0 in range(0, H, BLOCK_H):
        for x_0 in range(0, W, BLOCK_W):
            y, x = y_0 + rows, x_0 + columns
            live = (y < H) & (x < W)
            here = y * W + x
            offset = y * s_y + x * s_x
            if NEEDS_H or NEEDS_H_PREV:
                L = _denominator(D_x, D_y, s_y, s_x, y, x, live, H, W, dt_dx2, dt_dy2, D_X, D_Y, dtype)
                from_h = L * tl.load(adjoint + (K + 1) * size + here, mask=live, other=0.0)
                from_h_prev = (2.0 - L) * tl.load(adjoint + K * size + here, mask=live, other=0.0)
                if NEEDS_H:
                    of_h = from_h if HAS_H_PREV else from_h + from_h_prev
                    tl.store(grad_h + offset, of_h, mask=live)
                if NEEDS_H_PREV:
                    tl.store(grad_h_prev + offset, from_h_prev, mask=live)

            around = tl.zeros((BLOCK_H, BLOCK_W), dtype)
            sum_u, sum_v, sum_D_x, sum_D_y, sum_f = around, around, around, around, around
            for k in range(K):
                q_slot = adjoint + (K - k) * size
                h_slot = states + (k + 1) * size
                if NEEDS_F:
                    sum_f += tl.load(q_slot + here, mask=live, other=0.0)
                if NEEDS_D_X or NEEDS_D_Y:
                    around = tl.load(h_slot - size + here, mask=live, other=0.0)
                    around += tl.load(h_slot + size + here, mask=live, other=0.0)
                sum_u, sum_D_x = _add_step(
                    sum_u, sum_D_x, q_slot, h_slot, around, y, x, 0, 1, live, H, W, NEEDS_U, NEEDS_D_X, BOUNDARY
                )
                sum_v, sum_D_y = _add_step(
                    sum_v, sum_D_y, q_slot, h_slot, around, y, x, 1, 0, live, H, W, NEEDS_V, NEEDS_D_Y, BOUNDARY
                )
            if NEEDS_F:
                tl.store(grad_f + offset, sum_f * (2 * _scalar(dt, dtype)), mask=live)
            total_u = _emit(sum_u * _scalar(dt_dx, dtype), total_u, grad_u, offset, live, NEEDS_U, U)
            total_v = _emit(sum_v * _scalar(dt_dy, dtype), total_v, grad_v, offset, live, NEEDS_V, V)
            two_dt_dx2, two_dt_dy2 = 2 * _scalar(dt_dx2, dtype), 2 * _scalar(dt_dy2, dtype)
            total_D_x = _emit(sum_D_x * two_dt_dx2, total_D_x, grad_D_x, offset, live, NEEDS_D_X, D_X)
            total_D_y = _emit(sum_D_y * two_dt_dy2, total_D_y, grad_D_y, offset, live, NEEDS_D_Y, D_Y)
    tl.debug_barrier()  # the next plane uses the same scratch


@triton.jit(do_not_specialize=["planes", "C", "K"])
def backward_kernel(
    grad, grad_h, grad_h_prev, grad_u, grad_v, grad_D_x, grad_D_y, grad_f,
    h, h_prev, u, v, D_x, D_y, f, s_n, s_c, s_y, s_x, scratch, planes, C, H, W, K,
    dt: tl.float64, dt_dx: tl.float64, dt_dy: tl.float64, dt_dx2: tl.float64, dt_dy2: tl.float64,
    U: tl.constexpr, V: tl.constexpr, D_X: tl.constexpr, D_Y: tl.constexpr,
    BOUNDARY: tl.constexpr, HAS_F: tl.constexpr, HAS_H_PREV: tl.constexpr,
    NEEDS_H: tl.constexpr, NEEDS_H_PREV: tl.constexpr, NEEDS_U: tl.constexpr, NEEDS_V: tl.constexpr,
    NEEDS_D_X: tl.constexpr, NEEDS_D_Y: tl.constexpr, NEEDS_F: tl.constexpr,
    ONE_TILE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Recomputes the states, runs the adjoint and sums the gradients; `scratch` has `2 (K + 2)` planes per program.

    Fields are as in `forward_kernel`. A gradient is a map where its field is one, else one sum for each plane.
    """
    s_y, s_x = tl.cast(s_y, tl.int64), tl.cast(s_x, tl.int64)
    states = scratch + tl.program_id(0).to(tl.int64) * 2 * (K + 2) * (tl.cast(H, tl.int64) * W)
    for plane in range(tl.program_id(0), planes, tl.num_programs(0)):
        n, c = tl.cast(plane // C, tl.int64), tl.cast(plane % C, tl.int64)
        first = n * s_n + c * s_c
        _differentiate(
            grad + first, grad_h + first, grad_h_prev + first, grad_u + (first if U else plane),
            grad_v + (first if V else plane), grad_D_x + (first if D_X else plane),
            grad_D_y + (first if D_Y else plane), grad_f + first,
            h + first, h_prev + first, _plane(u, n, c, s_n, s_c, U), _plane(v, n, c, s_n, s_c, V),
            _plane(D_x, n, c, s_n, s_c, D_X), _plane(D_y, n, c, s_n, s_c, D_Y), f + first, s_y, s_x, states,
            H, W, K, dt, dt_dx, dt_dy, dt_dx2, dt_dy2, U, V, D_X, D_Y, BOUNDARY, HAS_F, HAS_H_PREV,
            NEEDS_H, NEEDS_H_PREV, NEEDS_U, NEEDS_V, NEEDS_D_X, NEEDS_D_Y, NEEDS_F, ONE_TILE, BLOCK_H, BLOCK_W,
        )  # fmt: skip
