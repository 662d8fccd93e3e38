r"""Hyperbolic blocks on which the full group of channel mixings acts, and the exact lift of Equation (3) to that form.

In a CP (canonical polyadic) form every factor of the product is read from the stream by a matrix of its own, so that a
change of basis of the stream, `u -> T u`, is absorbed by the matrices: `T^-1` where they read, `T` where they write.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pdecnn.layers.quasilinear import Equation3, QuasilinearBlock, depthwise, pointwise
from pdecnn.layers.shared_expand import SharedDepthwiseExpand


class CPBlock(QuasilinearBlock):
    r"""`du/dt = A D (a * b)` with `(a, b) = B u`: both factors of the product are mixtures of all channels.

    `B` is a 1x1 convolution `n -> 2 k n`, `D` two independent 3x3 stencils for each of the `k n` products, `A` a 1x1
    convolution `2 k n -> m`. The rank k is given as `f` and is by default 4 up to 128 channels and 2 above.
    """

    f_default: ClassVar[int] = 0
    norm_factors: nn.Module
    norm_derive: nn.Module

    def __init__(self, n: int, m: int | None = None, *, f: int | None = None, **options: Any) -> None:
        f = (4 if n <= 128 else 2) if f is None else f
        super().__init__(n, m, f=f, **{"shared": False, **options})

    def build(self, **dd: Any) -> None:
        """Creates B, D, A and the normalisations after B and D."""
        n, m, k = self.n, self.m, self.f
        if self.shared:
            raise ValueError("CPBlock: its stencils are independent; use shared=False.")
        self.factors = pointwise(n, 2 * k * n, **dd)
        self.norm_factors = nn.BatchNorm2d(2 * k * n, **dd)
        self.derive = depthwise(k * n, 2 * k * n, self.stride, **dd)
        self.norm_derive = nn.BatchNorm2d(2 * k * n, **dd)
        self.mix = pointwise(2 * k * n, m, **dd)

    def rhs(self, u: Tensor) -> Tensor:
        """`A D (a * b)`."""
        a, b = self.norm_factors(self.factors(u)).chunk(2, 1)
        return self.mix(self.norm_derive(self.derive(a * b)))  # type: ignore[no-any-return]


class LiftedBlock(QuasilinearBlock):
    r"""Equation (3) with a matrix before its derivatives: `du/dt = A ((C u) * D (B u))`.

    With B the selection matrix (row `j f + a` is `e_j`) it is Equation (3) itself, at `f n^2` more weights.
    """

    def build(self, **dd: Any) -> None:
        """Creates B, one stencil per row of B, their normalisation, C and A."""
        n, m, f = self.n, self.m, self.f
        self.select = pointwise(n, f * n, **dd)
        self.derive = depthwise(f * n, f * n, self.stride, **dd)
        self.norm_expand = nn.BatchNorm2d(f * n, **dd)
        self.coefficients = pointwise(n, f * n, self.stride, **dd)
        self.mix = pointwise(f * n, m, **dd)

    def rhs(self, u: Tensor) -> Tensor:
        """`A ((C u) * D B u)`."""
        d = self.norm_expand(self.derive(self.select(u)))
        return self.mix(d * self.coefficients(u))  # type: ignore[no-any-return]


def lift(block: Equation3) -> LiftedBlock:
    """The CP form of a block of Equation (3): the same function, on which the full group acts.

    Example:
        >>> block = pdecnn.layers.Equation3(8).eval()
        >>> u = torch.randn(2, 8, 5, 5)
        >>> torch.allclose(lift(block)(u), block(u), atol=1e-5)
        True
    """
    if not isinstance(block, Equation3):
        raise TypeError(f"lift: only blocks of Equation (3) can be lifted, got {type(block).__name__}.")
    n, f, like = block.n, block.f, block.mix.weight
    lifted = LiftedBlock(
        n, block.m, f=f, stride=block.stride, shared=False, act=block.act, drop_path=block.drop_path,
        device=like.device, dtype=like.dtype,
    )  # fmt: skip
    for name in ("norm_expand", "coefficients", "mix", "norm", "skip"):
        setattr(lifted, name, getattr(block, name))
    expand = block.expand
    assert isinstance(expand, (SharedDepthwiseExpand, nn.Conv2d))
    stencils = expand.weight.repeat(n, 1, 1, 1) if isinstance(expand, SharedDepthwiseExpand) else expand.weight
    selection = torch.eye(n, device=like.device, dtype=like.dtype).repeat_interleave(f, 0)
    with torch.no_grad():
        lifted.select.weight.copy_(selection[:, :, None, None])
        lifted.derive.weight.copy_(stencils)
    return lifted.train(block.training)
