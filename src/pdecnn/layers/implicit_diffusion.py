r"""Diffusion with constants of each channel by one implicit step, which reaches every pixel and is stable for any D.

.. math:: (1 - \sum_i D_i\, \partial_i^2)\, h^{1} = h^{0}

Nothing flows through the border. The step is a product with cosines along each axis, a factor for each frequency, and
the products back: two small matrices, which every runtime has.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pdecnn.functional import spectral_filter
from pdecnn.layers.spectra import SpectrumCache
from pdecnn.layers.transport import check_share


class ImplicitDiffusion(nn.Module):
    """The step above.

    Args:
        channels: Channels C, which are not mixed.
        axes: Dimensions of space, 1 to 3.
        share: How many neighbouring channels have the same coefficients; it divides C.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Attributes:
        root: `(axes, C / share)`: the square roots of D, in pixels.

    Example:
        >>> layer = ImplicitDiffusion(4)
        >>> h = torch.rand(1, 4, 8, 8)
        >>> torch.allclose(layer(h).mean(), h.mean(), atol=1e-6)  # nothing is lost
        True
    """

    def __init__(
        self,
        channels: int,
        *,
        axes: int = 2,
        share: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if axes not in (1, 2, 3):
            raise ValueError(f"ImplicitDiffusion: axes must be 1, 2 or 3, got axes={axes}.")
        check_share("ImplicitDiffusion", channels, share)
        self.channels, self.axes, self.share = channels, axes, share
        self.root = nn.Parameter(torch.empty(axes, channels // share, device=device, dtype=dtype))
        self._spectrum = SpectrumCache()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A blur of about a pixel, not the same in all channels."""
        nn.init.uniform_(self.root, 0.3, 1.0)

    def forward(self, h: Tensor) -> Tensor:
        """`(N, C, ...) -> (N, C, ...)`."""
        return spectral_filter(h, self.factors(h.shape[2:]), "neumann")

    def factors(self, size: Sequence[int]) -> Tensor:
        """What each frequency of a map of `size` is multiplied by, `(C, *size)`."""
        if self.training:
            return self._factors(size)
        return self._spectrum.get(self.root, tuple(size), lambda: self._factors(size))

    def _factors(self, size: Sequence[int]) -> Tensor:
        D = self.root.to(torch.promote_types(self.root.dtype, torch.float32)).square()
        total = torch.ones((), dtype=D.dtype, device=D.device)
        for axis, n in enumerate(size):
            angle = torch.arange(n, device=D.device, dtype=D.dtype) * (math.pi / n)
            shape = [1, *[n if i == axis else 1 for i in range(len(size))]]
            total = total + D[axis].view(-1, *[1] * len(size)) * (2 - 2 * angle.cos()).view(shape)
        found = total.reciprocal()
        return found if self.share == 1 else found.repeat_interleave(self.share, 0)

    def train(self, mode: bool = True) -> "ImplicitDiffusion":
        """Sets the mode and forgets the factors."""
        self._spectrum.clear()
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """What the module shows of itself."""
        others = {"axes": (self.axes, 2), "share": (self.share, 1)}
        return f"{self.channels}" + "".join(f", {n}={v}" for n, (v, usual) in others.items() if v != usual)
