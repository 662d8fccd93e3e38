"""The Global layer as ONNX Runtime runs it fastest: on rows of pixels whose channels lie side by side.

A map `(N, C, H, W)` is held as `(N, H, W C)`. A neighbour is then a long run of memory: along x a slice of the rows
beside themselves, along y a gather of whole rows. The convolutions of the runtime hand over channels in this order
at no cost, if a reshape follows the transposition; without it the transposition would be moved on.

With `a = A / 2` and `b = B` in the letters of `functional.advection_diffusion`, `i = 1 / (1/2 + b_x + b_y)` and `g`
minus the divergence of `a`, a step is

    h[k+1] = i ((b_x - a_x) h_right + (b_x + a_x) h_left + (b_y - a_y) h_down + (b_y + a_y) h_up + g h[k] + dt f)
             + (i - 1) h[k-1]

Borders other than periodic ones are as in `portable.py`.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.deploy import portable
from pdecnn.kernels.global_layer.op import ACTIVATIONS

_OPS = torch.ops.pdecnn


def to_rows(q: Tensor, W: int) -> Tensor:
    """`(N, C, H, W) -> (N, H, W C)`; numbers stay, one number per channel becomes a row."""
    if q.ndim == 0:
        return q
    C, H, columns = q.shape[1:]
    rows = q.permute(0, 2, 3, 1).reshape(-1, H, columns * C)
    return rows if columns == W else rows.repeat(1, 1, W)


def from_rows(q: Tensor, C: int) -> Tensor:
    """`(N, H, W C) -> (N, C, H, W)`."""
    H, WC = q.shape[1:]
    return q.reshape(-1, H, WC // C, C).permute(0, 3, 1, 2)


def beside(q: Tensor, C: int) -> tuple[Tensor, Tensor]:
    """The pixels to the right and to the left of each."""
    n = q.shape[2]
    twice = torch.cat([q, q], 2)
    return twice.narrow(2, C, n), twice.narrow(2, n - C, n)


def above_and_below(q: Tensor) -> tuple[Tensor, Tensor]:
    """The pixels below and above each."""
    H = q.shape[1]
    y = torch.arange(H)
    return q.index_select(1, (y + 1) % H), q.index_select(1, (y - 1) % H)


def _scales(dt: float, dx: float, dy: float) -> tuple[float, float, float, float]:
    """What makes `a_x`, `a_y`, `b_x`, `b_y` of the velocities and diffusivities."""
    return dt / (2 * dx), dt / (2 * dy), dt / dx**2, dt / dy**2


def advection_diffusion(h: Tensor, h_prev: Tensor | None, *others: Any) -> Tensor:
    """K steps of `functional.advection_diffusion`; the arguments are those of `portable.advection_diffusion`."""
    u, v, D_x, D_y, f, K, dt, dx, dy, boundary = others
    if boundary != "periodic":
        return portable.advection_diffusion_maps(h, h_prev, *others)
    C, W = h.shape[1], h.shape[3]
    scales = _scales(dt, dx, dy)
    a_x, a_y, b_x, b_y = (to_rows(q * scale, W) for q, scale in zip((u, v, D_x, D_y), scales, strict=True))
    state = to_rows(h, W)
    previous = state if h_prev is None or h_prev is h else to_rows(h_prev, W)
    source = None if f is None else state if f is h else previous if f is h_prev else to_rows(f, W)
    return from_rows(steps(state, previous, a_x, a_y, b_x, b_y, source, C=C, K=K, dt=dt), C)


def steps(
    h: Tensor,
    h_prev: Tensor,
    a_x: Tensor,
    a_y: Tensor,
    b_x: Tensor,
    b_y: Tensor,
    f: Tensor | None,
    *,
    C: int,
    K: int,
    dt: float,
) -> Tensor:
    """K steps on rows."""
    i = (b_x + b_y + 0.5).reciprocal()
    right, left, down, up, here = (q * i for q in (b_x - a_x, b_x + a_x, b_y - a_y, b_y + a_y, _inflow(a_x, a_y, C)))
    before = i - 1
    source = None if f is None else f * (i * dt)
    for _ in range(K):
        h_right, h_left = beside(h, C)
        h_down, h_up = above_and_below(h)
        h_next = right * h_right + left * h_left + down * h_down + up * h_up
        h_next = h_next + (before + here) * h if h_prev is h else h_next + before * h_prev + here * h
        h_prev, h = h, h_next if source is None else h_next + source
    return h


def _inflow(a_x: Tensor, a_y: Tensor, C: int) -> Tensor:
    """Minus the divergence of `a`; a number has none."""
    flows = []
    if a_x.ndim:
        right, left = beside(a_x, C)
        flows.append(left - right)
    if a_y.ndim:
        down, up = above_and_below(a_y)
        flows.append(up - down)
    return reduce(torch.add, flows) if flows else torch.zeros((), dtype=a_x.dtype)


def global_layer(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *options: Any
) -> Tensor:
    """`pdecnn::global_layer`, a whole Global layer; the options are those of `portable.global_layer`."""
    D_x, D_y, K, dt, dx, dy, boundary, flow_sign, previous_is_input, coefficient_act, output_act = options
    if boundary != "periodic":
        return portable.global_layer(h, x, weight, bias, scale, shift, *options)
    C, W, pad = h.shape[1], h.shape[3], weight.shape[-1] // 2
    scales = _scales(dt, dx, dy)
    learned = []
    for w, b, s in zip(weight, bias, scales, strict=False):  # two of them if D is a number
        inside, outside = (s, 1.0) if coefficient_act == "relu" else (1.0, s)  # relu(s q) = s relu(q)
        q = functional.conv2d(h, w.unsqueeze(1) * inside, b * inside, padding=pad, groups=C)
        q = to_rows(ACTIVATIONS[coefficient_act](q), W)
        learned.append(q if outside == 1 else q * outside)
    a_x, a_y = (q if flow_sign > 0 else -q for q in learned[:2])
    given = [torch.full((), D * s, dtype=h.dtype) for D, s in zip((D_x, D_y), scales[2:], strict=True)]
    b_x, b_y = learned[2:] or given
    state = to_rows(h, W)
    source = state if x is h else to_rows(x, W)
    out = steps(state, source if previous_is_input else state, a_x, a_y, b_x, b_y, source, C=C, K=K, dt=dt)
    return from_rows(ACTIVATIONS[output_act](out * scale.repeat(W) + shift.repeat(W)), C)


TABLE: portable.Table = {
    **portable.TABLE,
    _OPS.advection_diffusion.default: advection_diffusion,
    _OPS.global_layer.default: global_layer,
}
