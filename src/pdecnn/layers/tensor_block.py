r"""The quasi-linear system with its whole tensor of coefficients, before it is factored [LSB23, Eq. (1), (2)].

.. math:: \partial_t u_i = \sum_a \sum_{jk} A^a_{ijk}\, u_k\, D_a u_j
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.layers.quasilinear import QuasilinearBlock


class TensorBlock(QuasilinearBlock):
    r"""`du_i/dt = sum_a sum_jk A^a_ijk u_k D_a u_j`: every product of a channel and a derivative has its own weight.

    There are `f m n^2` of them, which is why Equations (3) to (7) factor the tensor. Block-diagonal, with `groups` = g,
    only products within one of g parts of the channels are taken and reach one part of the output: `f m n^2 / g^2`
    weights. The derivatives have no normalisation, so that with shared stencils the full group of channel mixings acts
    on the tensor: `T` on i, `T^-1` on j and k.

    Args:
        n: Input channels.
        m: Output channels.
        groups: Number of diagonal blocks, which divides n and m; 1 is the full tensor.
        options: As for `QuasilinearBlock`.
    """

    def __init__(self, n: int, m: int | None = None, *, groups: int = 1, **options: Any) -> None:
        m = n if m is None else m
        if groups < 1 or n % groups or m % groups:
            raise ValueError(f"TensorBlock: groups must divide n and m, got groups={groups}, n={n}, m={m}.")
        self.groups = groups
        super().__init__(n, m, **options)

    def build(self, **dd: Any) -> None:
        """Creates D and A; column `(j f + a) n + k` of A, within a group, is that of `u_k D_a u_j`."""
        n, m, f, g = self.n, self.m, self.f, self.groups
        self.expand = self._derivatives(n, self.stride, **dd)
        self.mix = nn.Conv2d(f * n * n // g, m, 1, groups=g, bias=False, **dd)
        nn.init.normal_(self.mix.weight, std=g / (n * math.sqrt(f)))  # products of unit variance sum to it

    def rhs(self, u: Tensor) -> Tensor:
        """`A (u x D u)`."""
        N, _, *size = (d := self.expand(u)).shape
        few = u[:, :, :: self.stride, :: self.stride]
        pairs = d.reshape(N, self.groups, -1, 1, *size) * few.reshape(N, self.groups, 1, -1, *size)
        return self.mix(pairs.reshape(N, -1, *size))  # type: ignore[no-any-return]

    @torch.no_grad()
    def change_input(self, T_inverse: Tensor) -> None:
        """`A^a_ijk <- sum A^a_ilm T^-1_lj T^-1_mk`, for the full tensor; of a block-diagonal one the identity alone."""
        if self.groups > 1:
            if torch.equal(T_inverse, torch.eye(self.n, dtype=T_inverse.dtype, device=T_inverse.device)):
                return
            raise ValueError(
                f"TensorBlock: a tensor of {self.groups} diagonal blocks is not transformed: a mixing of all channels "
                "would fill the rest of it. Use groups=1."
            )
        A = self.mix.weight.view(self.m, self.n, self.f, self.n)
        turned = torch.einsum("ilam,lj,mk->ijak", A, T_inverse, T_inverse)
        self.mix.weight.copy_(turned.reshape(self.mix.weight.shape))

    def extra_repr(self) -> str:
        """The arguments, to be pasted back."""
        return f"{super().extra_repr()}, groups={self.groups}"
