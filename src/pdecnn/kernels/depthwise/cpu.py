"""The native twin of `pdecnn::depthwise` on the CPU, for signals and images; volumes go to the reference."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.kernels.depthwise.op import _forward_reference, _stencil_gradient_reference, check, check_gradient
from pdecnn.kernels.library import BOUNDARIES, DTYPES, LIBRARY
from pdecnn.kernels.native import Library


def _sizes(y: Tensor, size: Sequence[int], boundary: str) -> tuple[int, ...]:
    """The fields of `Problem`; a signal is an image of one row."""
    H, W = (1, y.shape[2]) if y.ndim == 3 else y.shape[2:]
    rows, columns = (1, size[0]) if y.ndim == 3 else size
    return (DTYPES[y.dtype], y.shape[0], y.shape[1], H, W, rows, columns, BOUNDARIES[boundary])


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU."""
    run_forward = library.function("pdecnn_depthwise_forward")
    run_stencil_gradient = library.function("pdecnn_depthwise_stencil_gradient")

    def forward(y: Tensor, k: Tensor, boundary: str) -> Tensor:
        if y.dtype not in DTYPES or y.ndim > 4:
            return _forward_reference(y, k, boundary)
        check(y, k, boundary)
        y, k = y.contiguous(), k.to(torch.promote_types(y.dtype, torch.float32)).contiguous()
        out = y.new_empty(y.shape)
        run_forward(*_sizes(y, k.shape[1:], boundary), y.data_ptr(), k.data_ptr(), out.data_ptr())
        return out

    def stencil_gradient(grad: Tensor, y: Tensor, size: Sequence[int], boundary: str) -> Tensor:
        if y.dtype not in DTYPES or y.ndim > 4 or grad.dtype != y.dtype:
            return _stencil_gradient_reference(grad, y, size, boundary)
        check_gradient(grad, y, size, boundary)
        grad, y = grad.contiguous(), y.contiguous()
        out = y.new_empty((y.shape[1], *size), dtype=torch.promote_types(y.dtype, torch.float32))
        run_stencil_gradient(*_sizes(y, size, boundary), grad.data_ptr(), y.data_ptr(), out.data_ptr())
        return out

    LIBRARY.impl("depthwise", forward, "CPU")
    LIBRARY.impl("depthwise_stencil_gradient", stencil_gradient, "CPU")
