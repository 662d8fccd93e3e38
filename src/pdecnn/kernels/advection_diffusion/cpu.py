"""The native twin of `pdecnn::advection_diffusion`: packs pointers, sizes and strides and calls `cpu.cpp`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import _backward_reference, _forward_reference, _like, check
from pdecnn.kernels.library import BOUNDARIES, DTYPES, LIBRARY, is_interleaved, like
from pdecnn.kernels.native import Library

_ABSENT = (0, 0, 0, 0, 0)


def _map(q: Tensor | None, shape: torch.Size) -> tuple[int, ...]:
    """Address and strides of a field; strides are 0 where it is broadcast."""
    if q is None:
        return _ABSENT
    if q.shape == shape:
        return (q.data_ptr(), *q.stride())
    return (q.data_ptr(), 0, q.stride(1) if q.ndim == 4 else 0, 0, 0)


def _problem(
    inputs: Sequence[Tensor | None], K: int, dt: float, dx: float, dy: float, boundary: str
) -> tuple[int | float, ...]:
    h = inputs[0]
    assert h is not None
    maps = [x for q in inputs for x in _map(q, h.shape)]
    return (DTYPES[h.dtype], *h.shape, K, BOUNDARIES[boundary], is_interleaved(h), dt, dx, dy, *maps)


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU."""
    run_forward = library.function("pdecnn_advection_diffusion_forward")
    run_backward = library.function("pdecnn_advection_diffusion_backward")

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
        if h.dtype not in DTYPES:
            return _forward_reference(h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary)
        inputs = (h, h_prev, u, v, D_x, D_y, f)
        check(inputs, K, dt, dx, dy, boundary)
        out = like(h)
        problem = _problem(inputs, K, dt, dx, dy, boundary)
        run_forward(*problem, out.data_ptr(), *out.stride())
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
        if h.dtype not in DTYPES:
            return _backward_reference(grad, h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary, needs)
        inputs = (h, h_prev, u, v, D_x, D_y, f)
        check(inputs, K, dt, dx, dy, boundary, grad)
        grads, sums, packed = [], [], []
        for q, need in zip(inputs, needs, strict=True):
            if not need or q is None:
                g, s = h.new_empty(0), None
                packed += [*_ABSENT, 0]
            elif q.shape == h.shape:
                g, s = like(h), None
                packed += [g.data_ptr(), *g.stride(), 0]
            else:  # one number per plane, added up below
                g, s = _like(q, h), h.new_empty(h.shape[:2], dtype=torch.float64)
                packed += [*_ABSENT, s.data_ptr()]
            grads.append(g)
            sums.append(s)
        run_backward(*_problem(inputs, K, dt, dx, dy, boundary), *_map(grad, h.shape), *packed)
        for i, s in enumerate(sums):
            if s is not None:
                per_channel = s.sum(0)  # torch splits a sum over all among threads, not one over a dimension
                grads[i].copy_((per_channel if grads[i].ndim == 4 else per_channel.sum()).view(grads[i].shape))
        return grads

    LIBRARY.impl("advection_diffusion", forward, "CPU")
    LIBRARY.impl("advection_diffusion_backward", backward, "CPU")
