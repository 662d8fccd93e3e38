"""The depth-wise convolution by our own kernel, whose backward pass is several times faster than torch's on the CPU."""

import torch
from torch import Tensor, nn

from pdecnn.functional import depthwise
from pdecnn.reference.boundary import Boundary


class DepthwiseConv2d(nn.Module):
    """One stencil per channel: `nn.Conv2d(C, C, m, padding=m // 2, groups=C, bias=False)`.

    Args:
        channels: Number of channels C.
        kernel_size: Odd size m of the stencils.
        bias: Whether to add a number per channel.
        boundary: What lies beyond the border: zeros (`"dirichlet"`), or see `Boundary`.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> layer = DepthwiseConv2d(4)
        >>> y = torch.randn(1, 4, 6, 6)
        >>> conv = nn.functional.conv2d(y, layer.stencil[:, None], padding=1, groups=4)
        >>> torch.allclose(layer(y), conv, atol=1e-6)
        True
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
            raise ValueError(f"DepthwiseConv2d: kernel_size must be odd and positive, got {kernel_size}.")
        self.channels, self.kernel_size = channels, kernel_size
        self.boundary = Boundary.parse(boundary, "DepthwiseConv2d")
        self.stencil = nn.Parameter(torch.empty(channels, kernel_size, kernel_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform by fan-in, as `nn.Conv2d`; a bias starts at zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        nn.init.uniform_(self.stencil, -1 / self.kernel_size, 1 / self.kernel_size)

    def forward(self, y: Tensor) -> Tensor:
        """`K y` (plus the bias)."""
        out = depthwise(y, self.stencil, self.boundary)
        return out if self.bias is None else out + self.bias[:, None, None]

    def extra_repr(self) -> str:
        """The arguments."""
        bias = self.bias is not None
        return f"{self.channels}, kernel_size={self.kernel_size}, bias={bias}, boundary={self.boundary.value!r}"
