"""The native twin of `pdecnn::advection_diffusion`: packs pointers, sizes and strides and calls `cpu.cpp`."""

from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import Problem, backward_default, forward_default
from pdecnn.kernels.advection_diffusion.volume import register_native as register_volume
from pdecnn.kernels.library import BOUNDARIES, DTYPES, LIBRARY, is_interleaved, like
from pdecnn.kernels.native import Library

_ABSENT = (0, 0, 0, 0, 0)
_NO_GRADIENT = (*_ABSENT, 0)


def _map(q: Tensor | None, shape: torch.Size) -> tuple[int, ...]:
    """Address and strides of a field; strides are 0 where it is broadcast."""
    if q is None:
        return _ABSENT
    if q.shape == shape:
        return (q.data_ptr(), *q.stride())
    return (q.data_ptr(), 0, q.stride(1) if q.ndim == 4 else 0, 0, 0)


def _gradient(g: Tensor, shape: torch.Size) -> tuple[int, ...]:
    """The fields of `Gradient`: a map, one number for each plane, or neither."""
    return (*_map(g, shape), 0) if g.shape == shape else (*_ABSENT, g.data_ptr() if g.ndim == 2 else 0)


def _fields(problem: Problem) -> tuple[int | float, ...]:
    """The fields of `Problem` in `common/abi.h`."""
    *_, K, dt, dx, dy, boundary = problem
    shape, dtype, interleaved = problem.h.shape, problem.h.dtype, is_interleaved(problem.h)
    N, C, H, W = shape
    h, h_prev, u, v, D_x, D_y, f = (_map(q, shape) for q in problem.tensors)
    maps = (*h, *h_prev, *u, *v, *_ABSENT, *D_x, *D_y, *_ABSENT, *f)
    return (DTYPES[dtype], N, C, 1, H, W, K, BOUNDARIES[boundary], interleaved, dt, dx, dy, 1.0, *maps)


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU."""
    run_forward = library.function("pdecnn_advection_diffusion_forward")
    run_backward = library.function("pdecnn_advection_diffusion_backward")

    def forward(*arguments: Any) -> Tensor:
        problem = Problem(*arguments)
        if problem.h.dtype not in DTYPES:
            return forward_default(*arguments)
        problem.check()
        out = like(problem.h)
        run_forward(*_fields(problem), out.data_ptr(), *out.stride())
        return out

    def backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
        *given, needs = arguments
        problem = Problem(*given)
        if problem.h.dtype not in DTYPES:
            return backward_default(grad, *arguments)
        problem.check(grad)
        grads = problem.room(needs, sums=torch.float64)
        places = [_gradient(g, grad.shape) for g in grads]
        places[4:4], places[7:7] = [_NO_GRADIENT], [_NO_GRADIENT]
        run_backward(*_fields(problem), *_map(grad, grad.shape), *(x for place in places for x in place))
        return problem.gather(grads)

    LIBRARY.impl("advection_diffusion", forward, "CPU")
    LIBRARY.impl("advection_diffusion_backward", backward, "CPU")
    register_volume(library)
