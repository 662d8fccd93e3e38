"""The native twin of `pdecnn::spectral_filter` on the CPU, for the sizes at which it is the fastest."""

import math
from functools import cache

import torch
from torch import Tensor

from pdecnn.kernels.library import DTYPES, LIBRARY
from pdecnn.kernels.native import Library
from pdecnn.kernels.spectral_filter.choice import fastest
from pdecnn.kernels.spectral_filter.op import _adjoint, _filter, arithmetic, check_adjoint
from pdecnn.reference.spectral import check_filter, cosine_matrix

_VECTOR = 64  # bytes that the rows of a matrix are padded to, or half of it for short ones


def real_fourier_matrix(n: int) -> Tensor:
    """The orthonormal real Fourier basis: cosines of frequencies 0 to n/2, then sines of 1 to (n-1)/2."""
    j = torch.arange(n, dtype=torch.float64)
    p = torch.arange(n // 2 + 1, dtype=torch.float64)
    angle = 2 * math.pi * (p[:, None] * j % n) / n
    B = torch.cat([angle.cos(), angle[1 : (n + 1) // 2].sin()])
    return B.div(torch.linalg.vector_norm(B, dim=1, keepdim=True))


@cache
def _matrices(H: int, W: int, mirrored: bool, dtype: torch.dtype) -> tuple[int, tuple[Tensor, ...]]:
    """The padded row length, and the matrices of the rows and columns, there and back."""
    with torch.inference_mode(False):
        basis = (lambda n: cosine_matrix(n, torch.float64)) if mirrored else real_fourier_matrix
        R, C = basis(H), basis(W)
        lanes = _VECTOR // dtype.itemsize
        lanes = lanes // 2 if lanes // 2 >= W else lanes
        pad = (0, -W % lanes)
        tensors = (R, torch.nn.functional.pad(C.T, pad), R.T, torch.nn.functional.pad(C, pad))
        return W + pad[1], tuple(t.to(dtype).contiguous() for t in tensors)


def _problem(v: Tensor, g: Tensor, boundary: str) -> tuple[int, ...]:
    H, W = (1, v.shape[2]) if v.ndim == 3 else v.shape[2:]
    mirrored = boundary == "neumann"
    stride, matrices = _matrices(H, W, mirrored, g.dtype)
    pointers = [m.data_ptr() for m in matrices]
    return (DTYPES[v.dtype], v.shape[0], v.shape[1], H, W, stride, mirrored, *pointers, g.data_ptr())


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU."""
    run_forward = library.function("pdecnn_spectral_filter_forward")
    run_backward = library.function("pdecnn_spectral_filter_backward")

    def native(v: Tensor, boundary: str) -> bool:
        # Matrix products by torch have other bits for other numbers of threads; ours and the FFT have not.
        by_fft = boundary == "periodic" and fastest(v.shape[2:], native=True) == "fft"
        return v.dtype in DTYPES and v.ndim <= 4 and not by_fft

    def forward(v: Tensor, g: Tensor, boundary: str) -> Tensor:
        if not native(v, boundary):
            return _filter(v, g, boundary)
        check_filter(v, g, boundary)
        v, g = v.contiguous(), g.to(arithmetic(v)).contiguous()
        out = v.new_empty(v.shape)
        run_forward(*_problem(v, g, boundary), v.data_ptr(), out.data_ptr())
        return out

    def backward(grad: Tensor, v: Tensor, g: Tensor, boundary: str) -> tuple[Tensor, Tensor]:
        if not native(v, boundary):
            return _adjoint(grad, v, g, boundary)
        check_adjoint(grad, v, g, boundary)
        grad, v, wide = grad.to(v.dtype).contiguous(), v.contiguous(), g.to(arithmetic(v)).contiguous()
        grad_v, grad_g = v.new_empty(v.shape), torch.empty_like(wide)
        pointers = (grad.data_ptr(), v.data_ptr(), grad_v.data_ptr(), grad_g.data_ptr())
        run_backward(*_problem(v, wide, boundary), *pointers)
        return grad_v, grad_g.to(g.dtype)

    LIBRARY.impl("spectral_filter", forward, "CPU")
    LIBRARY.impl("spectral_filter_backward", backward, "CPU")
