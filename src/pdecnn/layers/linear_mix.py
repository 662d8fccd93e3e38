"""LinearMix: a convolution as the sum of a depth-wise and a 1x1 one."""

import math

import torch
from torch import Tensor, nn

from pdecnn.functional import linear_mix
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.depthwise import linear_mix_kernel


class LinearMixConv2d(nn.Module):
    r"""Drop-in for `nn.Conv2d(C, C, m)` of stride 1 with `m^2 C + C^2` weights instead of `m^2 C^2`.

    .. math:: y \mapsto K y + M y

    with a depth-wise K and a point-wise M [RD, Eq. (7)]. The diagonal of M and the centre taps of K overlap: C of the
    weights are redundant, and kept as in the paper.

    Args:
        channels: Number of channels C, in and out.
        kernel_size: Odd size m of the stencils.
        bias: Whether to add a number per channel.
        boundary: `"dirichlet"` (zeros beyond the border, the padding of `nn.Conv2d`), `"periodic"` or `"neumann"`.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Shape:
        `(N, C, H, W) -> (N, C, H, W)`.

    Example:
        >>> layer = LinearMixConv2d(16)
        >>> layer(torch.randn(2, 16, 8, 8)).shape, sum(p.numel() for p in layer.parameters())
        (torch.Size([2, 16, 8, 8]), 400)
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int = 3,
        *,
        bias: bool = False,
        boundary: str | Boundary = "dirichlet",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"LinearMixConv2d: kernel_size must be odd and positive, got {kernel_size}.")
        self.channels, self.kernel_size = channels, kernel_size
        self.boundary = Boundary.parse(boundary, "LinearMixConv2d")
        self.stencil = nn.Parameter(torch.empty(channels, kernel_size, kernel_size, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(channels, channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform with the variance of a convolution of the same fan-in, half of it from each part."""
        for p, fan_in in ((self.stencil, self.kernel_size**2), (self.weight, self.channels)):
            nn.init.uniform_(p, -1 / math.sqrt(2 * fan_in), 1 / math.sqrt(2 * fan_in))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, y: Tensor) -> Tensor:
        """`K y + M y` (plus the bias)."""
        if y.ndim != 4 or y.shape[1] != self.channels:
            raise ValueError(
                f"LinearMixConv2d: expected features of shape (N, {self.channels}, H, W), got {tuple(y.shape)}."
            )
        out = linear_mix(y, self.stencil, self.weight, self.boundary)
        return out if self.bias is None else out + self.bias[:, None, None]

    def as_conv2d(self) -> nn.Conv2d:
        """The full convolution that computes the same: the faster form where channels are few. Zero padding only."""
        if self.boundary is Boundary.NEUMANN:
            raise ValueError("LinearMixConv2d.as_conv2d: nn.Conv2d has no mirrored padding; use another boundary.")
        periodic = self.boundary is Boundary.PERIODIC
        conv = nn.Conv2d(
            self.channels,
            self.channels,
            self.kernel_size,
            padding=self.kernel_size // 2,
            padding_mode="circular" if periodic else "zeros",
            bias=self.bias is not None,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        with torch.no_grad():
            conv.weight.copy_(linear_mix_kernel(self.stencil, self.weight))
            if conv.bias is not None and self.bias is not None:
                conv.bias.copy_(self.bias)
        return conv

    def extra_repr(self) -> str:
        """The arguments."""
        bias = self.bias is not None
        return f"{self.channels}, kernel_size={self.kernel_size}, bias={bias}, boundary={self.boundary.value!r}"
