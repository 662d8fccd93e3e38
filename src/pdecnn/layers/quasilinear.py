r"""Residual blocks that are forward Euler steps of a first-order quasi-linear system [LSB23, Eq. (3)-(7)].

.. math:: \partial_t u_i = \sum_a \sum_{jk} A^a_{ijk}\, u_k\, D_a u_j

The nonlinearity is the product of two branches; the derivatives `D_a` are trainable 3x3 stencils, the matrices are 1x1
convolutions, and the time derivative is the skip. `n` is the number of input channels, `m` of output channels, `f` of
stencils per channel. A block with `m != n` has stride 2 and is called a downsampling block.

Channel order inside a block: the f derivatives of channel j stand at `j f + a`.

Equations (4) and (5) can be read in two ways, see `reading`: `"counts"` is what the printed parameter counts fit, the
default; `"text"` is what the paper writes.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pdecnn.kernels.global_layer.arguments import check_one_of
from pdecnn.layers.shared_expand import SharedDepthwiseExpand

READINGS = ("counts", "text")


def pointwise(n: int, m: int, stride: int = 1, **dd: Any) -> nn.Conv2d:
    """A matrix: the 1x1 convolution without bias."""
    return nn.Conv2d(n, m, 1, stride=stride, bias=False, **dd)


def depthwise(n: int, m: int, stride: int = 1, **dd: Any) -> nn.Conv2d:
    """Independent 3x3 stencils, `m / n` for each channel."""
    return nn.Conv2d(n, m, 3, stride=stride, padding=1, groups=n, bias=False, **dd)


class QuasilinearBlock(nn.Module):
    r"""One Euler step: `act(norm(rhs(u)) + skip(u))`. The equations below are its subclasses.

    Args:
        n: Input channels.
        m: Output channels; `n` (identity skip) or anything else (1x1 skip with batch norm).
        f: Stencils per channel.
        stride: 1 or 2; 2 needs a 1x1 skip and so `m != n`.
        shared: Whether all channels share the f stencils ("ws") or each has its own ("no ws").
        act: Module applied to the sum; the identity by default.
        drop_path: Module applied to the branch in training (stochastic depth); the identity by default.
        reading: `"counts"` or `"text"`; Equations (4) and (5) say what it changes, the others are the same in both.
        dd: `device` and `dtype` of the weights.

    Shape:
        `(N, n, H, W) -> (N, m, ceil(H / stride), ceil(W / stride))`.
    """

    f_default: ClassVar[int] = 4
    expand: nn.Module
    norm_expand: nn.Module
    norm: nn.Module

    def __init__(
        self,
        n: int,
        m: int | None = None,
        *,
        f: int | None = None,
        stride: int = 1,
        shared: bool = True,
        act: nn.Module | None = None,
        drop_path: nn.Module | None = None,
        reading: str = "counts",
        **dd: Any,
    ) -> None:
        super().__init__()
        m = n if m is None else m
        f = self.f_default if f is None else f
        name = type(self).__name__
        if min(n, m, f) < 1:
            raise ValueError(f"{name}: n, m and f must be at least 1, got n={n}, m={m}, f={f}.")
        if stride not in (1, 2):
            raise ValueError(f"{name}: stride must be 1 or 2, got {stride}.")
        if stride != 1 and n == m:
            raise ValueError(f"{name}: a block of stride {stride} changes the channels; got n=m={n}. Use m={2 * n}.")
        check_one_of(name, "reading", reading, READINGS)
        self.n, self.m, self.f, self.stride, self.shared, self.reading = n, m, f, stride, shared, reading
        self.build(**dd)
        self.norm = nn.BatchNorm2d(m, **dd) if self.has_end_norm else nn.Identity()
        if n == m:
            self.skip: nn.Module = nn.Identity()
        else:
            self.skip = nn.Sequential(pointwise(n, m, stride, **dd), nn.BatchNorm2d(m, **dd))
        self.act = nn.Identity() if act is None else act
        self.drop_path = nn.Identity() if drop_path is None else drop_path

    @property
    def has_end_norm(self) -> bool:
        """Whether a normalisation stands before the sum with the skip."""
        return True

    def build(self, **dd: Any) -> None:
        """Creates the modules of the right-hand side."""
        raise NotImplementedError

    def rhs(self, u: Tensor) -> Tensor:
        """The right-hand side of the equation, before the end normalisation."""
        raise NotImplementedError

    def forward(self, u: Tensor) -> Tensor:
        """Takes one step."""
        return self.act(self.drop_path(self.norm(self.rhs(u))) + self.skip(u))  # type: ignore[no-any-return]

    def zero_init_last(self) -> None:
        """Makes the block equal to its skip (and activation), by a zero gain in its last normalisation."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        nn.init.zeros_(self.norm.weight)

    def extra_repr(self) -> str:
        """The arguments, to be pasted back."""
        reading = "" if self.reading == "counts" else f", reading={self.reading!r}"
        return f"{self.n}, {self.m}, f={self.f}, stride={self.stride}, shared={self.shared}{reading}"

    def _derivatives(self, channels: int, stride: int, **dd: Any) -> nn.Module:
        """The expansion `channels -> f channels` by shared or independent stencils."""
        if self.shared:
            return SharedDepthwiseExpand(channels, self.f, stride=stride, **dd)
        return depthwise(channels, self.f * channels, stride, **dd)

    def _product(self, u: Tensor, c: Tensor) -> Tensor:
        """`c * norm_expand(expand(u))`, fused where the stencils are shared."""
        if isinstance(self.expand, SharedDepthwiseExpand):
            return self.expand.normed_product(u, self.norm_expand, c)
        return self.norm_expand(self.expand(u)) * c  # type: ignore[no-any-return]


class Equation3(QuasilinearBlock):
    r"""`du_i/dt = sum_a sum_j A^a_ij (C^a u)_j (D_a u)_j` [LSB23, Eq. (3)]."""

    def build(self, **dd: Any) -> None:
        """Creates D, its normalisation, C and A."""
        n, m, f = self.n, self.m, self.f
        self.expand = self._derivatives(n, self.stride, **dd)
        self.norm_expand = nn.BatchNorm2d(f * n, **dd)
        self.coefficients = pointwise(n, f * n, self.stride, **dd)
        self.mix = pointwise(f * n, m, **dd)

    def rhs(self, u: Tensor) -> Tensor:
        """`A ((C u) * D u)`."""
        return self.mix(self._product(u, self.coefficients(u)))  # type: ignore[no-any-return]


class Equation4(QuasilinearBlock):
    r"""`du_i/dt = (C u)_i (sum_a sum_j A^a_ij D_a u_j)`, with one C for all derivatives [LSB23, Eq. (4)].

    The paper writes a matrix C for each derivative, `sum_a (C^a u)_i (sum_j A^a_ij D_a u_j)`. That is
    `reading="text"`: 8.95M parameters in the net for which the paper prints 5.70M, which one C gives.
    """

    def build(self, **dd: Any) -> None:
        """Creates D, its normalisation, A and C."""
        n, m, f = self.n, self.m, self.f
        self.expand = self._derivatives(n, self.stride, **dd)
        self.norm_expand = nn.BatchNorm2d(f * n, **dd)
        if self.reading == "text":  # row a m + i of both is A^a_i and C^a_i
            self.mix = nn.Conv2d(f * n, f * m, 1, groups=f, bias=False, **dd)
            self.coefficients = pointwise(n, f * m, self.stride, **dd)
        else:
            self.mix = pointwise(f * n, m, **dd)
            self.coefficients = pointwise(n, m, self.stride, **dd)

    def rhs(self, u: Tensor) -> Tensor:
        """`(C u) * (A D u)`, or the sum of f such products."""
        d = self.norm_expand(self.expand(u))
        if self.reading == "text":
            d = d.unflatten(1, (self.n, self.f)).transpose(1, 2).flatten(1, 2)  # j f + a -> a n + j
            products: Tensor = self.coefficients(u) * self.mix(d)
            return products.reshape(products.shape[0], self.f, self.m, *products.shape[2:]).sum(1)
        return self.coefficients(u) * self.mix(d)  # type: ignore[no-any-return]


class Equation5(QuasilinearBlock):
    r"""`du_i/dt = sum_a (C^a u)_i (D_a u)_i` [LSB23, Eq. (5)]; a downsampling block sums `f n / m` neighbours.

    It has no normalisation at its end, which the printed count of 4.26M rules out; the gain of the one after the
    derivatives starts at zero instead. With `reading="text"` it ends in a normalisation as all others do (4.27M).
    `order`, none unless the symmetry group has acted on the block, is the order in which products are grouped.
    """

    order: Tensor | None

    @property
    def has_end_norm(self) -> bool:
        """In the reading of the text alone."""
        return self.reading == "text"

    def build(self, **dd: Any) -> None:
        """Creates D, its normalisation and C."""
        n, m, f = self.n, self.m, self.f
        if f * n % m:
            raise ValueError(f"Equation5: f n = {f * n} products cannot be summed to m = {m} channels evenly.")
        self.expand = self._derivatives(n, self.stride, **dd)
        self.norm_expand = nn.BatchNorm2d(f * n, **dd)
        self.coefficients = pointwise(n, f * n, self.stride, **dd)
        self.register_buffer("order", None)

    def rhs(self, u: Tensor) -> Tensor:
        """`sum_a (C^a u) * (D_a u)`."""
        p = self._product(u, self.coefficients(u))
        if self.order is not None:
            p = p[:, self.order]
        return p.reshape(p.shape[0], self.m, -1, *p.shape[2:]).sum(2)

    def zero_init_last(self) -> None:
        """Makes the block equal to its skip, by a zero gain in its last normalisation."""
        last = self.norm if self.has_end_norm else self.norm_expand
        assert isinstance(last, nn.BatchNorm2d)
        nn.init.zeros_(last.weight)


class Equation6(QuasilinearBlock):
    r"""`du_i/dt = sum_a sum_j A^a_ij D_a (u_j (C u)_j)`: a conservation law [LSB23, Eq. (6)]."""

    def build(self, **dd: Any) -> None:
        """Creates C, D, its normalisation and A."""
        n, m, f = self.n, self.m, self.f
        self.coefficients = pointwise(n, n, **dd)
        self.expand = self._derivatives(n, self.stride, **dd)
        self.norm_expand = nn.BatchNorm2d(f * n, **dd)
        self.mix = pointwise(f * n, m, **dd)

    def rhs(self, u: Tensor) -> Tensor:
        """`A D (u * C u)`."""
        return self.mix(self.norm_expand(self.expand(u * self.coefficients(u))))  # type: ignore[no-any-return]


class Equation7(QuasilinearBlock):
    r"""`du_i/dt = sum_a sum_j A^a_ij D_a (u_j (C^a u)_j)`: a conservation law, C by stencil [LSB23, Eq. (7)]."""

    def build(self, **dd: Any) -> None:
        """Creates C, one stencil per product, their normalisation and A."""
        n, m, f = self.n, self.m, self.f
        self.coefficients = pointwise(n, f * n, **dd)
        self.derive = StencilPerChannel(n, f, stride=self.stride, shared=self.shared, **dd)
        self.norm_expand = nn.BatchNorm2d(f * n, **dd)
        self.mix = pointwise(f * n, m, **dd)

    def rhs(self, u: Tensor) -> Tensor:
        """`sum_a A^a D_a (u * C^a u)`."""
        p = u.repeat_interleave(self.f, 1) * self.coefficients(u)
        return self.mix(self.norm_expand(self.derive(p)))  # type: ignore[no-any-return]


class StencilPerChannel(nn.Module):
    """Depth-wise 3x3 on `f n` channels where channel `j f + a` uses stencil a (shared) or a stencil of its own.

    Shape:
        `(N, f n, H, W) -> (N, f n, ceil(H / stride), ceil(W / stride))`.
    """

    def __init__(self, n: int, f: int, *, stride: int, shared: bool, **dd: Any) -> None:
        super().__init__()
        self.n, self.f, self.stride, self.shared = n, f, stride, shared
        self.weight = nn.Parameter(torch.empty(f if shared else f * n, 1, 3, 3, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the stencils with fan-out 9."""
        nn.init.normal_(self.weight, std=(2.0 / 9) ** 0.5)

    def forward(self, p: Tensor) -> Tensor:
        """Returns `D_a p_{j f + a}` for all j and a."""
        weight = self.weight.repeat(self.n, 1, 1, 1) if self.shared else self.weight
        return nn.functional.conv2d(p, weight, stride=self.stride, padding=1, groups=self.f * self.n)

    def extra_repr(self) -> str:
        """The arguments, to be pasted back."""
        return f"{self.n}, {self.f}, stride={self.stride}, shared={self.shared}"
