r"""One time step of the reaction-diffusion equation as a layer.

.. math:: \partial_t y = -K^T K\, y + \sigma(N(M y))

[RD, Eq. (8)]: K moves values between the pixels of a channel (or, block circulant, of all channels), the 1x1
convolution M between the channels of a pixel. N is a batch norm and :math:`\sigma` a ReLU.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pdecnn.functional import circulant_filter, explicit_diffusion, implicit_factors, spectral_filter, symbol
from pdecnn.layers.spectra import SpectrumCache
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.circulant import circulant_symbol
from pdecnn.reference.depthwise import check_stencil, pointwise
from pdecnn.reference.reaction_diffusion import DiffusionStability, stability
from pdecnn.reference.spectral import diagonalisable
from pdecnn.reference.time_step import check_time_step

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class ReactionDiffusion(nn.Module):
    """What the steps share: a stencil per channel, the channel matrix M, the norm, and the report on stability.

    Args:
        channels: Number of channels C, in and out.
        h: Time step.
        kernel_size: Odd size m of the stencils.
        dims: 1, 2 or 3: signals `(N, C, W)`, images `(N, C, H, W)` or volumes `(N, C, D, H, W)`.
        boundary: `"periodic"`, as in the paper, or another one that the step knows.
        affine: Whether the norm has weights; the published parameter counts are without.
        guard: Whether to scale down, in the forward pass, every stencil that breaks `h <= 2 / max symbol`, so that the
            explicit step never expands. The implicit step is stable without.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Shape:
        `(N, C, ...) -> (N, C, ...)`.
    """

    implicit = False
    circulant = False

    def __init__(
        self,
        channels: int,
        *,
        h: float = 0.1,
        kernel_size: int = 3,
        dims: int = 2,
        boundary: str | Boundary = "periodic",
        affine: bool = False,
        guard: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        check_time_step(h, where)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"{where}: kernel_size must be odd and positive, got {kernel_size}.")
        if dims not in NORMS:
            raise ValueError(f"{where}: dims must be 1, 2 or 3, got {dims}.")
        self.channels, self.h, self.kernel_size, self.dims = channels, h, kernel_size, dims
        self.affine, self.guard = affine, guard
        self.boundary = Boundary.parse(boundary, where)
        if self.circulant and self.boundary is not Boundary.PERIODIC:
            raise ValueError(f"{where}: channels and pixels form a torus, so boundary must be 'periodic'.")
        if self.implicit:
            diagonalisable(self.boundary, where)
        self.stencil = nn.Parameter(torch.empty(channels, *[kernel_size] * dims, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(channels, channels, device=device, dtype=dtype))
        self.norm = NORMS[dims](channels, affine=affine, device=device, dtype=dtype)
        self.act = nn.ReLU()
        self._spectrum = SpectrumCache()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform by fan-in: m^d taps of a stencil (C m^d if circulant, else its symbol grows with C), C of M."""
        taps = self.kernel_size**self.dims * (self.channels if self.circulant else 1)
        nn.init.uniform_(self.stencil, -1 / math.sqrt(taps), 1 / math.sqrt(taps))
        nn.init.uniform_(self.weight, -1 / math.sqrt(self.channels), 1 / math.sqrt(self.channels))

    def reaction(self, y: Tensor) -> Tensor:
        """`sigma(N(M y))`."""
        out: Tensor = self.act(self.norm(pointwise(y, self.weight)))
        return out

    def diffuse(self, y: Tensor) -> Tensor:
        """The step of the diffusion alone; `y` has been checked."""
        raise NotImplementedError

    def forward(self, y: Tensor) -> Tensor:
        """One time step."""
        check_stencil(y, self.stencil, self.boundary, type(self).__name__)
        if self.implicit:
            return self.diffuse(y + self.h * self.reaction(y))
        return torch.add(self.diffuse(y), self.reaction(y), alpha=self.h)

    def stability(self, size: Sequence[int] | None = None) -> DiffusionStability:
        """`h` against its bound, for grids of `size` or, by default, of any size."""
        with torch.no_grad():
            k = self.guarded(self.stencil)
        return stability(k, self.h, implicit=self.implicit, size=size, circulant=self.circulant)

    def guarded(self, k: Tensor) -> Tensor:
        """The stencils, scaled down where `h` is above their bound if `guard` is set."""
        if not self.guard or self.implicit:
            return k
        grid = [64 if self.dims < 3 else 16] * self.dims
        with torch.no_grad():  # the scale is not differentiated
            if self.circulant:
                largest = circulant_symbol(k.float(), grid).max()
            else:
                largest = symbol(k.float(), grid).flatten(1).amax(1).view(-1, *[1] * self.dims)
            scale = torch.rsqrt((self.h / 2 * largest).clamp(min=1.0))
        return k * scale.to(k.dtype)

    def extra_repr(self) -> str:
        """The arguments."""
        return (
            f"{self.channels}, h={self.h:g}, kernel_size={self.kernel_size}, dims={self.dims}, "
            f"boundary={self.boundary.value!r}, affine={self.affine}, guard={self.guard}"
        )


class ExplicitReactionDiffusion(ReactionDiffusion):
    r"""`y + h (-K^T K y + \sigma(N(M y)))` with a depth-wise K [RD, Eq. (9)].

    `I - h K^T K` is one stencil of size `2m - 1`, so the diffusion is one pass (two with zeros beyond the border).
    It does not expand iff `h <= 2 / max |k^|^2`: see `stability()` and `guard`.

    Example:
        >>> layer = ExplicitReactionDiffusion(8, h=0.1)
        >>> layer(torch.randn(2, 8, 16, 16)).shape, layer.stability().stable
        (torch.Size([2, 8, 16, 16]), True)
    """

    def diffuse(self, y: Tensor) -> Tensor:
        """`(I - h K^T K) y`."""
        return explicit_diffusion(y, self.guarded(self.stencil), self.h, self.boundary)


class ImplicitReactionDiffusion(ReactionDiffusion):
    r"""`(I + h K^T K)^{-1} (y + h \sigma(N(M y)))` with a depth-wise K [RD, Eq. (11)].

    Stable for every h and every stencil; one step couples all pixels of a channel. Boundary periodic or Neumann. In
    eval mode without gradients the spectrum is computed once for an image size and kept until the stencil changes.

    Example:
        >>> layer = ImplicitReactionDiffusion(8, h=5.0)
        >>> layer.stability().spectral_radius <= 1
        True
    """

    implicit = True

    def diffuse(self, y: Tensor) -> Tensor:
        """`(I + h K^T K)^{-1} y`."""
        return spectral_filter(y, self.factors(y.shape[2:]), self.boundary)

    def factors(self, size: Sequence[int]) -> Tensor:
        """`1 / (1 + h |k^|^2)`, `(C, *size)`."""

        def compute() -> Tensor:
            return implicit_factors(self.stencil, self.h, size, self.boundary)

        if self.training:
            return compute()
        return self._spectrum.get(self.stencil, (*size, self.h), compute)

    def train(self, mode: bool = True) -> "ImplicitReactionDiffusion":
        """Sets the mode and forgets the spectrum."""
        self._spectrum.clear()
        super().train(mode)
        return self


class CirculantReactionDiffusion(ReactionDiffusion):
    r"""The step with a block-circulant K, which couples channels too [RD, Eq. (12)].

    Args:
        channels: Number of channels C, in and out.
        implicit: `False` as published, `y + h (-K^T K y + r)`; `True` for `(I + h K^T K)^{-1} (y + h r)`.
        kwargs: As for `ReactionDiffusion`.

    Example:
        >>> layer = CirculantReactionDiffusion(8, implicit=True)
        >>> layer(torch.randn(2, 8, 5, 7)).shape
        torch.Size([2, 8, 5, 7])
    """

    circulant = True

    def __init__(self, channels: int, *, implicit: bool = False, **kwargs: object) -> None:
        self.implicit = implicit
        super().__init__(channels, **kwargs)  # type: ignore[arg-type]

    def diffuse(self, y: Tensor) -> Tensor:
        """`(I - h K^T K) y`, or `(I + h K^T K)^{-1} y`."""
        return circulant_filter(y, self.factors(y.shape[2:]))

    def factors(self, size: Sequence[int]) -> Tensor:
        """What each frequency of channels and pixels is multiplied by, `(C, *size)`."""

        def compute() -> Tensor:
            w = self.guarded(self.stencil)
            s = self.h * circulant_symbol(w.to(torch.promote_types(w.dtype, torch.float32)), size)
            return 1 / (1 + s) if self.implicit else 1 - s

        if self.training:
            return compute()
        return self._spectrum.get(self.stencil, (*size, self.h), compute)

    def train(self, mode: bool = True) -> "CirculantReactionDiffusion":
        """Sets the mode and forgets the spectrum."""
        self._spectrum.clear()
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, implicit={self.implicit}"
