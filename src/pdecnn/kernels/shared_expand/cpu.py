"""The native twins of `pdecnn::shared_expand*` on the CPU; `parts.py` brings the arguments into a form they know."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.library import DTYPES, LIBRARY
from pdecnn.kernels.native import Library
from pdecnn.kernels.shared_expand import op
from pdecnn.kernels.shared_expand.parts import by_parts

_EXPAND, _MOMENTS, _PRODUCT = range(3)
_POINTERS = (
    "u", "stencils", "scale", "shift", "c", "grad", "out", "grad_u", "grad_c", "grad_stencils", "sum0", "sum1"
)  # fmt: skip


def register(library: Library) -> None:
    """Makes the native kernels the implementation on the CPU."""
    run_forward = library.function("pdecnn_shared_expand_forward")
    run_backward = library.function("pdecnn_shared_expand_backward")

    def call(run: Any, mode: int, stride: int, **tensors: Tensor) -> None:
        u, f = tensors["u"], len(tensors["stencils"])
        addresses = (tensors[name].data_ptr() if name in tensors else 0 for name in _POINTERS)
        run(DTYPES[u.dtype], *u.shape, f, stride, mode, *addresses)

    def expand(u: Tensor, stencils: Tensor, stride: int) -> Tensor:
        u, stencils = u.contiguous(), stencils.contiguous()
        out = u.new_empty(op.output_shape(u, stencils, stride))
        call(run_forward, _EXPAND, stride, u=u, stencils=stencils, out=out)
        return out

    def moments(u: Tensor, stencils: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        u, stencils = u.contiguous(), stencils.contiguous()
        N, Cf, Ho, Wo = op.output_shape(u, stencils, stride)
        means, squares = (u.new_empty(N, Cf, dtype=torch.float64) for _ in range(2))
        call(run_forward, _MOMENTS, stride, u=u, stencils=stencils, sum0=means, sum1=squares)
        mean = _sum(means) / N  # planes have the same number of pixels
        var = (_sum(squares) + Ho * Wo * _sum((means - mean).square())) / (N * Ho * Wo)
        return mean.to(u.dtype), var.to(u.dtype)

    def product(u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int) -> Tensor:
        u, stencils, scale, shift, c = (q.contiguous() for q in (u, stencils, scale, shift, c))
        out = torch.empty_like(c)
        call(run_forward, _PRODUCT, stride, u=u, stencils=stencils, scale=scale, shift=shift, c=c, out=out)
        return out

    def expand_backward(grad: Tensor, u: Tensor, stencils: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        grad, u, stencils = grad.contiguous(), u.contiguous(), stencils.contiguous()
        grad_u, partial = torch.empty_like(u), _partial(u, stencils)
        call(run_backward, _EXPAND, stride, u=u, stencils=stencils, grad=grad, grad_u=grad_u, grad_stencils=partial)
        return grad_u, _stencil_sum(partial, stencils)

    def affine_backward(
        slope: Tensor, offset: Tensor, u: Tensor, stencils: Tensor, stride: int
    ) -> tuple[Tensor, Tensor]:
        slope, offset, u, stencils = (q.contiguous() for q in (slope, offset, u, stencils))
        grad_u, partial = torch.empty_like(u), _partial(u, stencils)
        call(
            run_backward, _MOMENTS, stride,
            u=u, stencils=stencils, scale=slope, shift=offset, grad_u=grad_u, grad_stencils=partial,
        )  # fmt: skip
        return grad_u, _stencil_sum(partial, stencils)

    def product_backward(
        grad: Tensor, u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        grad, u, stencils, scale, shift, c = (q.contiguous() for q in (grad, u, stencils, scale, shift, c))
        grad_u, grad_c, partial = torch.empty_like(u), torch.empty_like(c), _partial(u, stencils)
        by_shift, by_scale = (u.new_empty(c.shape[:2], dtype=torch.float64) for _ in range(2))
        call(
            run_backward, _PRODUCT, stride,
            u=u, stencils=stencils, scale=scale, shift=shift, c=c, grad=grad,
            grad_u=grad_u, grad_c=grad_c, grad_stencils=partial, sum0=by_shift, sum1=by_scale,
        )  # fmt: skip
        sums = (_sum(by_scale).to(u.dtype), _sum(by_shift).to(u.dtype))
        return grad_u, _stencil_sum(partial, stencils), *sums, grad_c

    implementations: dict[str, Callable[..., Any]] = {
        "shared_expand": expand,
        "shared_expand_moments": moments,
        "shared_expand_product": product,
        "shared_expand_backward": expand_backward,
        "shared_expand_affine_backward": affine_backward,
        "shared_expand_product_backward": product_backward,
    }
    for name, implementation in implementations.items():
        LIBRARY.impl(name, by_parts(name, implementation), "CPU")


def _partial(u: Tensor, stencils: Tensor) -> Tensor:
    """Room for one gradient of the stencils for each plane, summed afterwards in a fixed order."""
    return u.new_empty((u.shape[0] * u.shape[1], len(stencils), 9), dtype=torch.float64)


def _stencil_sum(partial: Tensor, stencils: Tensor) -> Tensor:
    return _sum(partial).view(stencils.shape).to(stencils.dtype)


def _sum(q: Tensor) -> Tensor:
    """The sum over the first axis on one thread: torch's own has other bits for other numbers of threads."""
    return torch.from_numpy(q.numpy().sum(0))
