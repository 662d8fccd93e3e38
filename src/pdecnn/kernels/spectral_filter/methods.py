"""Ways to compute a periodic spectral filter and its adjoint in torch: equal results, different speeds.

Each is a pair of functions: `filter(v, g)`, and `adjoint(grad, v, g)` which returns the gradients of `v` and `g`.
`choice.py` says which is the fastest at a size.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from pdecnn.reference.spectral import cosine_matrix, even_and_odd, hartley_matrix, negated


class Method(NamedTuple):
    """A filter and the gradients of its two arguments."""

    filter: Callable[[Tensor, Tensor], Tensor]
    adjoint: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _frequencies(v: Tensor) -> list[int]:
    return list(range(2, v.ndim))


def point_symmetric(g: Tensor) -> Tensor:
    """The mean of `g` at each frequency and its negative."""
    return (g + negated(g, *range(1, g.ndim))) / 2


def _half(g: Tensor) -> Tensor:
    return point_symmetric(g)[..., : g.shape[-1] // 2 + 1]


# by real fast Fourier transforms: any number of dimensions, best for large grids


def _fft(v: Tensor) -> Tensor:
    return torch.fft.rfftn(v, dim=_frequencies(v))  # type: ignore[no-any-return]


def _fft_filter(v: Tensor, g: Tensor) -> Tensor:
    return torch.fft.irfftn(_fft(v) * _half(g), s=v.shape[2:], dim=_frequencies(v))  # type: ignore[no-any-return]


def _fft_adjoint(grad: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    G = _fft(grad)
    grad_v: Tensor = torch.fft.irfftn(G * _half(g), s=v.shape[2:], dim=_frequencies(v))
    P = (G.conj() * _fft(v)).real.sum(0) / v.shape[2:].numel()
    rest = negated(P, *range(1, P.ndim - 1)).flip(-1) if P.ndim > 2 else P.flip(-1)  # the frequencies left of zero
    n = v.shape[-1]
    skip = 1 - n % 2  # n / 2 is its own negative
    return grad_v, torch.cat([P, rest[..., skip : skip + n - P.shape[-1]]], -1)


# by products with the Hartley matrices of each axis: two small matrix products per axis


def _two_sided(v: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return torch.matmul(rows, torch.matmul(v, columns))


def _hartley(v: Tensor) -> tuple[Tensor, Tensor]:
    return hartley(v.shape[-2], v.dtype, v.device), hartley(v.shape[-1], v.dtype, v.device)


def _from_hartley(T: Tensor, g: Tensor) -> Tensor:
    R, C = _hartley(T)
    g_e, g_o = even_and_odd(g)
    return _two_sided(g_e * T, R, C) - _two_sided(g_o * T, negated(R, 0), negated(C, 0))


def _hartley_filter(v: Tensor, g: Tensor) -> Tensor:
    return _from_hartley(_two_sided(v, *_hartley(v)), g)


def _hartley_adjoint(grad: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    G, T = (_two_sided(q, *_hartley(q)) for q in (grad, v))
    even, _ = even_and_odd((G * T).sum(0))
    _, odd = even_and_odd((negated(G, -2, -1) * T).sum(0))
    return _from_hartley(G, g), even - odd


# by one product with the Hartley matrix of the whole grid: best for tiny grids


def _grid(v: Tensor) -> Tensor:
    return hartley_of_grid(v.shape[-2], v.shape[-1], v.dtype, v.device)


def _dense_filter(v: Tensor, g: Tensor) -> Tensor:
    B = _grid(v)
    return (((v.flatten(2) @ B) * point_symmetric(g).flatten(1)) @ B).view(v.shape)


def _dense_adjoint(grad: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    B = _grid(v)
    G, T = grad.flatten(2) @ B, v.flatten(2) @ B
    grad_v = ((G * point_symmetric(g).flatten(1)) @ B).view(v.shape)
    return grad_v, point_symmetric((G * T).sum(0).view(g.shape))


METHODS = {
    "fft": Method(_fft_filter, _fft_adjoint),
    "hartley": Method(_hartley_filter, _hartley_adjoint),
    "dense": Method(_dense_filter, _dense_adjoint),
}


# the mirrored filter has one way: products with the cosine matrix of each axis


def _cosines(v: Tensor, inverse: bool) -> Tensor:
    for axis in _frequencies(v):
        D = cosine(v.shape[axis], v.dtype, v.device)
        v = (v.movedim(axis, -1) @ (D if inverse else D.T)).movedim(-1, axis)
    return v


def _cosine_filter(v: Tensor, g: Tensor) -> Tensor:
    return _cosines(g * _cosines(v, inverse=False), inverse=True).contiguous()


def _cosine_adjoint(grad: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    G, T = _cosines(grad, inverse=False), _cosines(v, inverse=False)
    return _cosines(g * G, inverse=True).contiguous(), (G * T).sum(0)


COSINE = Method(_cosine_filter, _cosine_adjoint)


# The matrices are kept: they depend on the size alone. Only real kernels get here, never a tracer.


@cache
def hartley(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`hartley_matrix`, computed once."""
    with torch.inference_mode(False):
        return hartley_matrix(n, dtype, device)


@cache
def cosine(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`cosine_matrix`, computed once."""
    with torch.inference_mode(False):
        return cosine_matrix(n, dtype, device)


@cache
def hartley_of_grid(H: int, W: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`(cos + sin)(w . x)` over all frequencies w and pixels x of a grid, `(H W, H W)`, orthonormal and symmetric."""
    with torch.inference_mode(False):
        p, q = torch.meshgrid(torch.arange(H, device=device), torch.arange(W, device=device), indexing="ij")
        p, q = p.flatten().double(), q.flatten().double()
        turns = (p[:, None] * p % H) / H + (q[:, None] * q % W) / W
        angle = 2 * torch.pi * turns
        return (angle.cos() + angle.sin()).div(math.sqrt(H * W)).to(dtype)
