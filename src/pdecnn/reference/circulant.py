r"""The block-circulant operator: every channel sees every other through one stencil per *distance* of channels.

.. math:: (K y)_{i,r,s} = \sum_{d,p,q} w_{d,p,q}\; y_{(i + d) \bmod C,\; r + p - 1,\; s + q - 1}

[RD, Eq. (12)]. `w` of shape `(C, m, ...)` is a stencil on the torus of channels and pixels, so all is a Fourier
transform over channels and pixels together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.reference.depthwise import check_stencil
from pdecnn.reference.spectral import embed, spectral_filter
from pdecnn.reference.time_step import check_time_step


def circulant(y: Tensor, w: Tensor) -> Tensor:
    """`K y` for features `(N, C, ...)` and `w` of shape `(C, m, ...)`, on the periodic grid.

    Example:
        >>> y = torch.tensor([[[1.0], [2.0], [4.0]]])
        >>> circulant(y, torch.tensor([[1.0], [10.0], [0.0]])).flatten().round()  # channel i + 10 times channel i + 1
        tensor([21., 42., 14.])
    """
    check_stencil(y, w, "periodic", "circulant")
    return _multiply(y, _transform(w, y.shape[2:]).conj())


def circulant_adjoint(z: Tensor, w: Tensor) -> Tensor:
    """`K^T z`."""
    check_stencil(z, w, "periodic", "circulant_adjoint")
    return _multiply(z, _transform(w, z.shape[2:]))


def circulant_symbol(w: Tensor, size: Sequence[int]) -> Tensor:
    r"""The eigenvalues :math:`|\hat w|^2` of `K^T K` over the frequencies of channels and pixels, `(C, *size)`."""
    w_hat = _transform(w, size)
    return w_hat.real.square() + w_hat.imag.square()


def circulant_diffusion(y: Tensor, w: Tensor) -> Tensor:
    """`K^T K y`."""
    check_stencil(y, w, "periodic", "circulant_diffusion")
    return circulant_filter(y, circulant_symbol(w, y.shape[2:]))


def circulant_implicit_diffusion(v: Tensor, w: Tensor, h: float) -> Tensor:
    """`(I + h K^T K)^{-1} v`. Not in the paper; it costs the same as the explicit form."""
    check_stencil(v, w, "periodic", "circulant_implicit_diffusion")
    check_time_step(h, "circulant_implicit_diffusion")
    return circulant_filter(v, 1 / (1 + h * circulant_symbol(w, v.shape[2:])))


def circulant_filter(v: Tensor, g: Tensor) -> Tensor:
    """Multiplies `v` by `g`, both `(C, ...)` but for the batch, in the Fourier basis of channels and pixels."""
    return spectral_filter(v.unsqueeze(1), g.unsqueeze(0)).squeeze(1)


def circulant_kernel(w: Tensor) -> Tensor:
    """The full convolution `(C, C, m, ...)` that equals `circulant`: block `(i, j)` is `w[(j - i) mod C]`."""
    c = torch.arange(w.shape[0], device=w.device)
    return w[(c - c[:, None]) % w.shape[0]]


def _transform(w: Tensor, size: Sequence[int]) -> Tensor:
    w_hat: Tensor = torch.fft.fftn(embed(w, size, centred=True))
    return w_hat


def _multiply(y: Tensor, w_hat: Tensor) -> Tensor:
    axes = list(range(1, y.ndim))
    product: Tensor = torch.fft.ifftn(torch.fft.fftn(y, dim=axes) * w_hat, dim=axes)
    return product.real
